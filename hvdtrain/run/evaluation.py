"""The model of a checkpoint measured on sets of records, by all ranks, as the validation of training measures it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hvdtrain.algorithms.confusion_matrix import MOST_CLASSES, class_values
from hvdtrain.comm.communicator import Communicator
from hvdtrain.data.catalog_source import require_little_lost, warn_of_damage
from hvdtrain.engine.limits import RunLimits
from hvdtrain.engine.stop_vote import StopRequest, StopVote
from hvdtrain.engine.validator import Validator
from hvdtrain.errors import UsageError
from hvdtrain.run.predicted_values import Confusions
from hvdtrain.run.trained_model import TrainedModel

THEN: Final = "it ends after this batch, without a result"
"""What a request to stop leads to."""


@dataclass(frozen=True)
class SetResult:
    """What was measured on one set. Equal on all ranks."""

    name: str
    records: int  # that were measured
    left_out: int  # that are damaged
    fingerprint: str  # of the set's catalog
    as_in_training: bool | None  # whether the training has validated on just these; None: on no set of this name
    values: Mapping[str, float]  # mean of each of the task's measures over the records
    confusion: NDArray[np.int64] | None  # [classes, classes], row: true class; None: the task is no classification

    def to_json(self) -> dict[str, Any]:
        known = {
            "records": self.records,
            "left_out": self.left_out,
            "fingerprint": self.fingerprint,
            "as_in_training": self.as_in_training,
            "measures": dict(self.values),
        }
        if self.confusion is None:
            return known
        classes = [asdict(values) for values in class_values(self.confusion)]
        return {**known, "classes": classes, "confusion": self.confusion.tolist()}


def evaluate_sets(
    trained: TrainedModel, sets: Mapping[str, str | None] | None, asked: StopRequest
) -> dict[str, SetResult] | str:
    """Measure each set, one after the other; what asked, where a request stopped it. Collective.

    Args:
        sets: as `TrainedModel.open_sets` takes them.
        asked: whether this rank was asked to stop.

    Raises UsageError: on all ranks, before anything is measured; a set has no records. HvdtrainError: on all ranks; the
    loss is not finite, or too many records are damaged.
    """
    sources = trained.open_sets(sets)
    catalogs = [source.catalog for source in sources.values()]
    limits = RunLimits(epochs=1, max_masked=trained.config.data.max_corrupt)
    require_little_lost(catalogs, limits.max_masked)
    if trained.comm.topology.is_root:
        warn_of_damage(catalogs)
    vote = StopVote(trained.comm, asked)
    results: dict[str, SetResult] = {}
    stopped = vote.open()
    label = trained.task.label_feature
    for name, source in sources.items():
        confusions = None if label is None else Confusions(trained.adapter, trained.task, label)
        use = None if confusions is None else confusions.measure
        validator = Validator(trained.adapter, trained.comm, source, limits, name, use)
        reading = None if stopped else validator.measure(trained.step, vote, lambda: None)
        if reading is None:
            return vote.reason()
        matrix = None if confusions is None else _summed(confusions, trained.comm, name)
        fingerprint, then = source.catalog.fingerprint, trained.validated_on.get(name)
        same = None if then is None else then == fingerprint
        results[name] = SetResult(name, reading.samples, reading.masked, fingerprint, same, reading.values, matrix)
    vote.close()
    return results


def _summed(confusions: Confusions, comm: Communicator, name: str) -> NDArray[np.int64]:
    """The matrix of all ranks together. Collective. Raises UsageError: on all ranks; a class is no class."""
    total = confusions.matrix.reduced(lambda array, op: comm.allreduce(array, f"hvdtrain.confusion.{name}.{op}", op))
    if total.outside:
        raise UsageError(
            f"{total.outside:,} records of {name} have a label that is no class, or are taken for one that is none.",
            f"Classes are numbered from 0 to {MOST_CLASSES - 1:,}.",
            "set the task's label_feature to None, so that no confusion matrix is counted.",
        ).on_all_ranks()
    return total.counts
