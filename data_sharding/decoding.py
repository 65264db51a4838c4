"""From record ids to decoded arrays: the work that a background thread or process does for one batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import PlanError
from data_sharding.reader import RecordReader
from data_sharding.records import RecordBatch
from data_sharding.sample_random import SampleRandom

Decode = Callable[[RecordBatch], dict[str, NDArray[Any]]]


class Decoded(NamedTuple):
    """k decoded records: arrays of k rows by name, and bool[k], which of the records were sound."""

    features: dict[str, NDArray[Any]]
    intact: NDArray[np.bool_]


def read_and_decode(
    reader: RecordReader, decode: Decode, ids: NDArray[np.int64], random: SampleRandom | None
) -> Decoded:
    """Read records ids int64[k] and decode them.

    Raises:
        PlanError: `decode` returned another number of rows.
        ShardingError: as `RecordReader.load`; and whatever `decode` raises.
    """
    records = reader.load(ids, random)
    return Decoded(decode_rows(decode, records), records.intact)


def decode_rows(decode: Decode, records: RecordBatch) -> dict[str, NDArray[Any]]:
    """What `decode` makes of k records: arrays of k rows by name.

    Raises:
        PlanError: it returned another number of rows; and whatever `decode` raises.
    """
    try:
        features = decode(records)
    except StopIteration as error:
        # It would pass for the end of the epoch in whatever iterates over the batches.
        raise RuntimeError("the decode function raised StopIteration") from error
    _check_rows(features, len(records))
    return features


def _check_rows(features: dict[str, NDArray[Any]], rows: int) -> None:
    for name, array in features.items():
        if np.shape(array)[:1] != (rows,):
            raise PlanError(
                f"The decode function returned shape {np.shape(array)} for {name!r} from {rows} records.",
                "The first dimension must be the records, or weights would fall on the wrong ones.",
                "return one row for each record.",
            )
