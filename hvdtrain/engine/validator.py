"""Validation: the model measured on all validation records, and what must be known of its metrics before training."""

from collections.abc import Callable
from dataclasses import dataclass

from hvdtrain import activity
from hvdtrain.adapters.adapter_protocol import Adapter
from hvdtrain.algorithms.early_stopping import require_metric
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import agree
from hvdtrain.engine.events import ReducedMetrics
from hvdtrain.engine.limits import RunLimits
from hvdtrain.engine.loss_guard import LossGuard
from hvdtrain.engine.meter import Meter
from hvdtrain.engine.source import Source
from hvdtrain.engine.stop_vote import StopVote


@dataclass(eq=False)
class Validator:
    """Measures the model on the validation data.

    Args:
        adapter: the model.
        comm: the other ranks.
        source: the data.
        limits: how many records may be damaged.
    """

    adapter: Adapter
    comm: Communicator
    source: Source
    limits: RunLimits

    def __post_init__(self) -> None:
        self._meter = Meter(self.adapter, self.comm)
        self._guard = LossGuard(self.comm, self.source, "validation")

    def measure(self, step: int, vote: StopVote, when_read: Callable[[], None]) -> ReducedMetrics | None:
        """Means over all records, after `step` updates; None where a request stopped it. Collective.

        `when_read` is called once the last batch is here, before the model has seen it.

        A part says nothing: the run that continues validates again.

        Raises:
            HvdtrainError: on all ranks; the loss is not finite, or too many records are damaged.
        """
        plan = self.source.plan(0)
        self._meter.start()
        activity.now.reads = self.source.reading
        activity.now.begin("validation data", step)
        with self.adapter.evaluating(), self.source.loader(0, 0) as loader:
            for done, batch in enumerate(loader, start=1):
                activity.now.begin("validation step", step)
                if done == plan.steps:
                    when_read()
                self.adapter.eval_step(batch)
                self._meter.count(batch)
                self._guard.add(batch)
                if vote.after_step() and done < plan.steps:
                    loader.abandon()  # as in training
                    return None
                activity.now.begin("validation data", step)
            reading = self._meter.reduce("validation")
        self.limits.require_few_masked(reading.masked, plan.num_records, "validation")
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
