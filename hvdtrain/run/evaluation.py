"""The model of a checkpoint measured on sets of records, by all ranks, as the validation of training measures it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hvdtrain.data.catalog_source import require_little_lost, warn_of_damage
from hvdtrain.engine.limits import RunLimits
from hvdtrain.engine.stop_vote import StopRequest, StopVote
from hvdtrain.engine.validator import Validator
from hvdtrain.run.trained_model import TrainedModel


@dataclass(frozen=True)
class SetResult:
    """What was measured on one set. Equal on all ranks."""

    name: str
    records: int  # that were measured
    left_out: int  # that are damaged
    fingerprint: str  # of the set's catalog
    values: Mapping[str, float]  # mean of each of the task's measures over the records

    def to_json(self) -> dict[str, Any]:
        return {
            "records": self.records,
            "left_out": self.left_out,
            "fingerprint": self.fingerprint,
            "measures": dict(self.values),
        }


def evaluate_sets(
    trained: TrainedModel, sets: Mapping[str, str | None], asked: StopRequest
) -> dict[str, SetResult] | None:
    """Measure each set, one after the other; None where a request stopped it. Collective.

    Args:
        sets: name → pattern in the data folder; None: the task's own validation records.
        asked: whether this rank was asked to stop.

    Raises UsageError: on all ranks, before anything is measured; a set has no records. HvdtrainError: on all ranks; the
    loss is not finite, or too many records are damaged.
    """
    sources = {name: trained.open_set(name, pattern) for name, pattern in sets.items()}
    catalogs = [source.catalog for source in sources.values()]
    limits = RunLimits(epochs=1, max_masked=trained.config.data.max_corrupt)
    require_little_lost(catalogs, limits.max_masked)
    if trained.comm.topology.is_root:
        warn_of_damage(catalogs)
    vote = StopVote(trained.comm, asked)
    results: dict[str, SetResult] = {}
    stopped = vote.open()
    for name, source in sources.items():
        validator = Validator(trained.adapter, trained.comm, source, limits)
        reading = None if stopped else validator.measure(trained.step, vote, lambda: None)
        if reading is None:
            return None
        fingerprint = source.catalog.fingerprint
        results[name] = SetResult(name, reading.samples, reading.masked, fingerprint, reading.values)
    vote.close()
    return results
