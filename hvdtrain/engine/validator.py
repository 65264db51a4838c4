"""One validation: every record of the validation set once, on all ranks together."""

from __future__ import annotations

from typing import final

from hvdtrain.adapters.interface import Adapter
from hvdtrain.algorithms.early_stopping import require_metric
from hvdtrain.comm.interface import Communicator
from hvdtrain.comm.messages import agree
from hvdtrain.engine.agreement import StopVote
from hvdtrain.engine.events import ReducedMetrics
from hvdtrain.engine.interface import RunLimits, Source
from hvdtrain.engine.loss_guard import LossGuard
from hvdtrain.engine.meter import Meter


@final
class Validator:
    """Measures the model on the validation data.

    Args:
        adapter: the model.
        comm: the other ranks.
        source: the data.
        limits: how many records may be damaged.
    """

    def __init__(self, adapter: Adapter, comm: Communicator, source: Source, limits: RunLimits) -> None:
        self._adapter, self._source, self._limits = adapter, source, limits
        self._meter = Meter(adapter, comm)
        self._guard = LossGuard(comm, source, "validation")

    def measure(self, step: int, vote: StopVote) -> ReducedMetrics | None:
        """Means over all records, after `step` updates; None where a request stopped it. Collective.

        A part says nothing: the run that continues validates again.

        Raises:
            HvdtrainError: on all ranks; the loss is not finite, or too many records are damaged.
        """
        plan = self._source.plan(0)
        self._meter.start()
        with self._adapter.evaluating(), self._source.loader(0, 0) as loader:
            for done, batch in enumerate(loader, start=1):
                self._adapter.eval_step(batch)
                self._meter.count(batch)
                self._guard.add(batch)
                if vote.after_step() and done < plan.steps:
                    loader.abandon()  # as in training
                    return None
            reading = self._meter.reduce("validation")
        self._limits.require_few_masked(reading.masked, plan.num_records, "validation")
        self._guard.check(reading, 0, step)
        return reading


def require_measured(adapter: Adapter, comm: Communicator, source: Source, metric: str) -> None:
    """Measure one batch, before training: only that tells which metrics a task has. Collective.

    Raises:
        UsageError: on all ranks; `metric` is not among them.
    """
    with source.loader(0, 0) as loader:
        adapter.eval_step(next(iter(loader)))
    measured = adapter.read_sums().values
    agree(comm, lambda: require_metric(metric, measured), "hvdtrain.start.metric")
