"""Whether a pass of a virtual worker follows from its weights, records and seed alone (`--virtual-workers`).

A model that draws from a generator of its own, or that keeps a state of its own between passes, would give other bits
on another number of workers. So before the first update, one pass is repeated from the same state, and compared.
"""

import math
from typing import Final

import numpy as np

from data_sharding import LoadedBatch
from hvdtrain.adapters.adapter_protocol import PassChecks
from hvdtrain.algorithms.micro_batches import cut_batch
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import gather_json, is_same_on_all
from hvdtrain.data.random_draws import GeneratorStates
from hvdtrain.engine.source import Source
from hvdtrain.errors import UsageError
from hvdtrain.topology.virtual_workers import VirtualWorkers

_NAMED: Final = 3  # weights in a message


def require_one_layout(comm: Communicator, batch: LoadedBatch) -> None:
    """Raise `UsageError` if rows of this first batch have other dtypes or shapes on some workers. Collective.

    On fewer workers they would be rows of one batch. A short batch may leave a worker without a record.
    """
    layout = {name: f"{array.dtype} {list(array.shape[1:])}" for name, array in batch.features.items()}
    if is_same_on_all(comm, layout, "hvdtrain.first_batch"):
        return
    of_ranks = gather_json(comm, layout, "hvdtrain.first_batch")
    other = next(rank for rank, found in enumerate(of_ranks) if found != of_ranks[0])
    first, second = (", ".join(f"{name} {kind}" for name, kind in of_ranks[rank].items()) for rank in (0, other))
    raise UsageError(
        f"--virtual-workers is given, and rows of the first batch have {first} on rank 0, {second} on rank {other}.",
        "The records of several virtual workers are one batch where there are fewer workers, and such rows cannot be.",
        "let shapes depend on the record alone, or pad to the longest of the global batch (pad= of data.dataset).",
    ).on_all_ranks()


def require_repeatable(checks: PassChecks, workers: VirtualWorkers, batch: LoadedBatch, step: int) -> None:
    """Repeat the pass of this worker's first virtual worker in update `step` (from 0), which leaves no trace.

    Args: `batch`: of this worker in that update.

    Raises `UsageError`: the pass draws from Python's or numpy's generator, or the gradients differ.
    """
    own, worker = cut_batch(batch, workers.slots)[0], workers.own.start
    before = GeneratorStates()
    first = checks.repeated(own, worker, step)
    _require_no_draws(before, "in its pass")
    differing = first != checks.repeated(own, worker, step)
    if checks.begin_anew():  # a generator in a graph begins anew with it, and one in Python is asked only then
        differing |= first != checks.repeated(own, worker, step)
    if names := [checks.names[place] for place in np.flatnonzero(differing).tolist()]:
        some = ", ".join(names[:_NAMED]) + (" …" if len(names) > _NAMED else "")
        raise _not_repeatable(
            f"the same pass, made again with the same weights, records and seeds, gave different gradients (of {some})"
        )


def require_repeatable_evaluation(checks: PassChecks, workers: VirtualWorkers, source: Source) -> None:
    """Evaluate the first batch of a validation set twice for this worker's first virtual worker, which leaves no trace.

    Raises `UsageError`: it draws from Python's or numpy's generator, changes a buffer, or the measures differ.
    """
    with source.loader(0, 0) as loader:
        own, worker = cut_batch(next(iter(loader)), workers.slots)[0], workers.own.start
    before = GeneratorStates()
    first, again, changed = checks.measured_twice(own, worker)
    _require_no_draws(before, "in evaluation")
    if changed:
        raise UsageError(
            f"--virtual-workers is given, and the model changes {changed[0]!r} in evaluation.",
            "A validation would read what earlier batches of the same worker have made of it.",
            "change buffers, or variables that are not trained, in training alone, or leave --virtual-workers out.",
        )
    if names := [name for name, value in first.values.items() if not _same(value, again.values[name])]:
        raise _not_repeatable(f"the same evaluation, made again, gave different measures ({', '.join(names[:_NAMED])})")


def _require_no_draws(before: GeneratorStates, where: str) -> None:
    if drawn := before.drawn_outside_torch():
        raise _not_repeatable(f"the task draws random numbers from {' and '.join(drawn)} {where}")


def _same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def _not_repeatable(found: str) -> UsageError:
    return UsageError(
        f"--virtual-workers is given, and {found}.",
        "What it computes would depend on which worker computes what before, and so on the number of workers.",
        "draw from the framework's generators (torch.rand, keras.random with a SeedGenerator), and keep what changes "
        "from pass to pass in buffers or variables that are not trained; or leave --virtual-workers out.",
    )
