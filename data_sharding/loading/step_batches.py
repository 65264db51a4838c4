"""One rank's batch of one step: read, decoded, or both, by a background thread."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_sharding.formats.record_format import RecordBatch
from data_sharding.loading.decoding import Decode, Decoded, decode_named, decode_sound
from data_sharding.loading.read_ahead import StepReads
from data_sharding.plan.step_slots import SlotPlanner, StepSlots
from data_sharding.reading.record_reader import RecordReader
from data_sharding.reading.wanted import Wanted
from data_sharding.sample_random import SampleRandom

Fetch = Callable[[NDArray[np.int64], SampleRandom | None, int | None, NDArray[np.int64] | None], Decoded]
"""Reads and decodes what a `Wanted` says."""


class LoadedBatch(NamedTuple):
    """One rank's part of one step, k records.

    Attributes:
        step: step of the epoch.
        ids: int64[k].
        weights: float32[k], 0 for masked slots and for records that turned out to be damaged.
        features: what `decode` made of the records; each array has k rows.
        global_weight: real records of the step over all ranks, as planned.
        damaged: int64[d], ids of records with weight in the plan that could not be read and were masked.
        reasons: what is wrong with these, by their ids.
    """

    step: int
    ids: NDArray[np.int64]
    weights: NDArray[np.float32]
    features: dict[str, NDArray[Any]]
    global_weight: float
    damaged: NDArray[np.int64] = np.empty(0, np.int64)
    reasons: Mapping[int, str] = {}


def load_slots(slots: StepSlots, fetch: Fetch) -> LoadedBatch:
    """Read and decode what is planned for one step; errors as `fetch`."""
    return _batch_of(slots, fetch(slots.ids, slots.random, slots.longest, slots.ranges))


def _batch_of(slots: StepSlots, decoded: Decoded) -> LoadedBatch:
    features, intact, reasons = decoded
    if intact.all():
        return LoadedBatch(slots.step, slots.ids, slots.weights, features, slots.global_weight)
    damaged = slots.ids[~intact & (slots.weights > 0)]
    return LoadedBatch(slots.step, slots.ids, slots.weights * intact, features, slots.global_weight, damaged, reasons)


def read_step(planner: SlotPlanner, reader: RecordReader, step: int) -> RecordBatch:
    """The records of a step, to be decoded later; errors as `RecordReader.load`."""
    slots = planner(step)
    spans = None if slots.ranges is None else reader.spans(slots.ids, slots.ranges)
    return reader.load(slots.ids, slots.random, slots.longest, spans)


def load_step(planner: SlotPlanner, fetch: Fetch, who: str, step: int) -> LoadedBatch:
    """What a background thread does; it knows nothing of the loader, which can be collected when it is dropped."""
    try:
        return load_slots(planner(step), fetch)
    except Exception as error:
        error.add_note(f"while loading step {step} of {who}")
        raise


def decode_step(
    planner: SlotPlanner, reads: StepReads, reader: RecordReader, decode: Decode, who: str, step: int
) -> LoadedBatch:
    """As `load_step`, of records that were read ahead."""
    try:
        return _batch_of(planner(step), decode_named(reader, decode, reads.get(step)))
    except Exception as error:
        error.add_note(f"while loading step {step} of {who}")
        raise


def load_steps(planner: SlotPlanner, reader: RecordReader, decode: Decode, who: str, steps: range) -> list[LoadedBatch]:
    """As `load_step` one by one, but the records of all these steps are read at once."""
    try:
        slots = [planner(step) for step in steps]
        several = reader.load_several([Wanted(part.ids, part.random, part.longest, part.ranges) for part in slots])
        pairs = zip(slots, several, strict=True)
        return [_batch_of(part, decode_sound(reader, decode, records)) for part, records in pairs]
    except Exception as error:
        together = f"steps {steps[0]} to {steps[-1]} of {who}"
        error.add_note(f"while loading {together}, each of which could be loaded afterwards")
        raise
