"""What `--dry-run` runs: one batch of training, and one of validation, on all ranks. Nothing is kept of them."""

from __future__ import annotations

import time
from collections.abc import Callable

from data_sharding import LoadedBatch
from hvdtrain.adapters.interface import Adapter
from hvdtrain.comm import Communicator
from hvdtrain.loop_interface import Source
from hvdtrain.meter import Meter, Reading
from hvdtrain.not_finite import LossGuard
from hvdtrain.preparation import Prepared
from hvdtrain.progress import format_values
from hvdtrain.source import CatalogSource
from hvdtrain.sync import assert_equal_weights, average_drifting


def try_batches(prepared: Prepared, adapter: Adapter, comm: Communicator) -> list[str]:
    """One update of the weights, exchange of gradients included, then validation forward. Collective.

    Returns:
        A line for each batch, with its loss and the time that it took. Pipes are left alone: what is read from them is
        gone.

    Raises:
        HvdtrainError: the loss is not finite, or the ranks' weights differ afterwards.
    """
    lines = []
    if isinstance(prepared.train, CatalogSource):
        lines.append(
            _tried(
                (prepared.train, "training", "forward, backward and update"),
                lambda batch: adapter.train_step(batch, 0, prepared.schedule.lr(0)),
                adapter,
                comm,
            )
        )
        average_drifting(comm, adapter)
        assert_equal_weights(comm, adapter.state(), "After the dry run's update")
    if prepared.validation is not None:
        with adapter.evaluating():
            lines.append(_tried((prepared.validation, "validation", "forward"), adapter.eval_step, adapter, comm))
    return lines


def _tried(
    what: tuple[Source, str, str], use: Callable[[LoadedBatch], None], adapter: Adapter, comm: Communicator
) -> str:
    source, name, done = what
    meter, guard = Meter(adapter, comm), LossGuard(comm, source, name)
    with source.loader(0, 0) as loader:
        batch = next(iter(loader))
    begin = time.perf_counter()
    use(batch)
    meter.count(batch)
    guard.add(batch)
    reading: Reading = meter.read(name)  # waits for the device
    seconds = time.perf_counter() - begin
    guard.check(reading, 0, 1)
    return f"{name} batch of {reading.samples} records: {done} in {seconds:.2f} s, {format_values(reading.values)}"
