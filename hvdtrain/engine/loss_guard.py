"""NaN and infinity in losses: found in the reduced value, then looked for in the data.

The loss is looked at where it is read anyway, so that no step waits for the device. By then a bad record may have
spread through the gradients of several steps to every rank; which record it was is found by decoding those of the
steps since the last reading again.
"""

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Never

import numpy as np
from numpy.typing import NDArray

from data_sharding import LoadedBatch
from data_sharding.errors import ShardingError
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import gather_json
from hvdtrain.engine.events import ReducedMetrics
from hvdtrain.engine.source import Source
from hvdtrain.errors import HvdtrainError

_NAMED: Final = 5

_log = logging.getLogger("hvdtrain.data")


@dataclass(eq=False)
class LossGuard:
    """Ends a run whose `what` loss ("training", "validation" or "validation NAME") is not finite, and says where that
    came from."""

    comm: Communicator
    source: Source
    what: str

    def __post_init__(self) -> None:
        self._recent: list[NDArray[np.int64]] = []

    def add(self, batch: LoadedBatch) -> None:
        """A batch that this rank has measured since the last `check`."""
        self._recent.append(batch.ids)  # masked slots too: 0 times NaN is NaN

    def check(self, reading: ReducedMetrics, epoch: int, step: int) -> None:
        """Collective if the reduced loss is not finite, which all ranks see alike. Raises HvdtrainError: it is not; on
        all ranks."""
        recent, self._recent = self._recent, []
        if not math.isfinite(reading.values["loss"]):
            operation = f"hvdtrain.not_finite.{self.what.replace(' ', '.')}"
            bad_records = gather_json(self.comm, self._bad_records(epoch, recent), operation)
            _refuse(
                f"The {self.what} loss is {reading.values['loss']} at step {step}{_on(reading, bad_records)}.",
                bad_records,
            )

    def _bad_records(self, epoch: int, recent: list[NDArray[np.int64]]) -> list[str] | None:
        """Some of the records of `recent` that hold NaN or infinity; None where that cannot be told."""
        bad: dict[str, None] = {}
        for ids in map(np.unique, recent):
            try:
                features = self.source.decoded_again(epoch, ids)
            except (ShardingError, OSError) as error:
                _log.warning("records could not be read again, to look for NaN: %s", error)
                return list(bad) or None
            if features is None:
                return None
            if not any(array.dtype.kind in "fc" for array in features.values()):
                return []  # bytes and whole numbers are finite, in every batch
            for row, names in rows_not_finite(features):
                bad[f"record {ids[row]} ({self.source.describe(int(ids[row]))}) in {', '.join(names)}"] = None
            if len(bad) >= _NAMED:
                break
        return list(bad)[:_NAMED]


def rows_not_finite(features: Mapping[str, NDArray[Any]]) -> Iterator[tuple[int, list[str]]]:
    """Rows of decoded arrays [k, ...] that hold NaN or infinity, each with the names of these arrays."""
    bad: dict[int, list[str]] = {}
    for name, array in features.items():
        if array.dtype.kind in "fc":
            whole = np.isfinite(array.reshape(len(array), -1)).all(axis=1)
            for row in np.flatnonzero(~whole).tolist():
                bad.setdefault(row, []).append(repr(name))
    yield from sorted(bad.items())


def _on(reading: ReducedMetrics, bad_records: list[list[str] | None]) -> str:
    """Where the bad numbers were first, as far as that can be told: weights carry them to all ranks in one step."""
    ranks = [rank for rank, bad in enumerate(bad_records) if bad] or list(reading.not_finite)
    if len(bad_records) == 1 or len(ranks) in (0, len(bad_records)):
        return ""
    named = ", ".join(map(str, ranks[:_NAMED])) + (", …" if len(ranks) > _NAMED else "")
    return f", on rank{'s' if len(ranks) > 1 else ''} {named}"


def _refuse(fact: str, bad_records: list[list[str] | None]) -> Never:
    records = [f"{bad} on rank {rank}" for rank, of_rank in enumerate(bad_records) for bad in of_rank or []]
    if records:
        raise HvdtrainError(
            fact,
            f"Its data hold values that are not finite: {'; '.join(records[:_NAMED])}.",
            "repair these records or leave them out, or have the task's decode() replace such values; --resume auto "
            "continues from the last checkpoint, if there is one, which is still good.",
        ).on_all_ranks()
    cleared = "" if None in bad_records else "The data since the last reading are finite, so it is the training. "
    raise HvdtrainError(
        fact,
        f"{cleared}Further steps would only spread it through the weights; checkpoints of before, if any, are good.",
        "lower --lr, lengthen --warmup-epochs, set --max-grad-norm"
        + ("." if cleared else ", or look for bad values in the data."),
    ).on_all_ranks()
