"""What `--dry-run` runs: one batch of training, and one of validation, on all ranks. Nothing is saved."""

import time
from collections.abc import Callable

from data_sharding import LoadedBatch
from hvdtrain.adapters.adapter_protocol import Adapter
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import agree
from hvdtrain.data.catalog_source import CatalogSource
from hvdtrain.engine.loss_guard import LossGuard
from hvdtrain.engine.meter import Meter
from hvdtrain.engine.source import Source
from hvdtrain.engine.state_sync import average_rank_local_state, weights_in_common
from hvdtrain.engine.validator import require_measured
from hvdtrain.run.prepare import RunSetup
from hvdtrain.run.result import describe
from hvdtrain.run.sinks.progress import format_values
from hvdtrain.run.start import named_checkpoint, open_own_adapter, restore_and_broadcast


def dry_run(setup: RunSetup, comm: Communicator) -> None:
    """Say what would be trained, and try it on one batch. Collective; writes nothing."""
    named = agree(comm, lambda: named_checkpoint(setup, comm), "hvdtrain.resume.named")
    adapter = open_own_adapter(setup, comm)
    restore_and_broadcast(setup, adapter, named, comm)
    is_root = comm.topology.is_root
    if is_root:
        print("\n".join(describe(setup, comm, adapter.parameter_count())), flush=True)
    if setup.validation and setup.config.best_metric is not None:
        require_measured(adapter, comm, setup.validation, setup.config.best_metric)
    for line in [*_try_batches(setup, adapter, comm), "nothing was written, and the weights are discarded"]:
        if is_root:
            print(f"dry run: {line}", flush=True)


def _try_batches(setup: RunSetup, adapter: Adapter, comm: Communicator) -> list[str]:
    """One update of the weights, exchange of gradients included, then validation forward. Collective.

    Returns a line for each batch, with its loss and the time that it took. Pipes are left alone: what is read from them
    is gone. Raises HvdtrainError: the loss is not finite, or the ranks' weights differ afterwards.
    """
    lines = []
    if isinstance(setup.train, CatalogSource):
        lr, done = setup.schedule.lr(0), "forward, backward and update"
        lines.append(_tried(setup.train, "training", done, lambda b: adapter.train_step(b, 0, lr), adapter, comm))
        average_rank_local_state(comm, adapter)
        weights_in_common(comm, adapter, "After the dry run's update")
    for name, source in setup.validation.items():
        with adapter.evaluating():
            what = f"validation {name}".rstrip()
            lines.append(_tried(source, what, "forward", adapter.eval_step, adapter, comm))
    return lines


def _tried(
    source: Source, name: str, done: str, use: Callable[[LoadedBatch], None], adapter: Adapter, comm: Communicator
) -> str:
    meter, guard = Meter(adapter, comm), LossGuard(comm, source, name)
    with source.loader(0, 0) as loader:
        batch = next(iter(loader))
    begin = time.perf_counter()
    use(batch)
    meter.count(batch)
    guard.add(batch)
    reading = meter.reduce(name)  # waits for the device
    seconds = time.perf_counter() - begin
    guard.check(reading, 0, 1)
    return f"{name} batch of {reading.samples} records: {done} in {seconds:.2f} s, {format_values(reading.values)}"
