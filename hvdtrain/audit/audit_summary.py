"""Check a run's audit: was every record used once, or as often as planned, in every epoch?

Only those lines of the ledger count that led to the weights that are there.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_sharding import Catalog, CoverageAudit
from data_sharding.atomic import final_path
from data_sharding.draws.draw_rule import planned_counts
from data_sharding.errors import ShardingError
from hvdtrain.audit.ledger import CATALOG, LEDGER, PIPE_NOTE
from hvdtrain.audit.ledger_lines import Line, check_epochs, damaged_ledger, replay
from hvdtrain.checkpoints.store import CheckpointStore
from hvdtrain.errors import UsageError


class UnlikeUses(NamedTuple):
    """Records that were not used as often as an epoch draws them.

    Attributes:
        too_often, missing: ids int64, ascending, of those that were used more and less often; not of damaged ones.
        as_planned: uses that were planned and took place.
    """

    too_often: NDArray[np.int64]
    missing: NDArray[np.int64]
    as_planned: int

    @classmethod
    def of(cls, audit: CoverageAudit, planned: NDArray[np.int64], damaged: tuple[int, ...]) -> "UnlikeUses":
        """Compare with how often each record is drawn, int64[N]."""
        left = planned - audit.to_array()
        left[np.array(damaged, np.int64)] = 0
        return cls(np.flatnonzero(left < 0), np.flatnonzero(left > 0), audit.count + int(left[left < 0].sum()))


@dataclass(frozen=True, eq=False)
class EpochCoverage:
    """What the committed steps of one epoch were trained on."""

    number: int  # of the epoch, from 1 as progress counts them
    audit: CoverageAudit  # which records, without damaged ones
    steps: int  # committed ones
    of_steps: int  # of an epoch
    gaps: tuple[tuple[int, int], ...]  # steps that no segment accounts for, as [first, end) since the start
    world_sizes: tuple[int, ...]  # numbers of workers that took part, in the order of time
    damaged: tuple[int, ...]  # ids of records that were left out
    unlike: UnlikeUses | None = None  # compared with how often the epoch draws each record; None: it draws each once

    @property
    def finished(self) -> bool:
        """Whether all its steps are accounted for."""
        return self.steps == self.of_steps

    @property
    def exact(self) -> bool:
        """No record more often than planned; and, where the epoch was finished, none missing."""
        return not self.gaps and not len(self.too_often) and not (self.finished and self._is_incomplete)

    @property
    def too_often(self) -> NDArray[np.int64]:
        """Ids of records that were used more often than planned, ascending."""
        return self.audit.duplicates() if self.unlike is None else self.unlike.too_often

    @property
    def missing(self) -> NDArray[np.int64]:
        """Ids of records that were used less often than planned, without damaged ones, ascending."""
        return self.audit.missing() if self.unlike is None else self.unlike.missing

    @property
    def _is_incomplete(self) -> bool:
        return not self.audit.complete if self.unlike is None else bool(len(self.unlike.missing))

    @property
    def used_once(self) -> int:
        """How many records; with planned numbers of uses, how many uses were planned and took place."""
        if self.unlike is not None:
            return self.unlike.as_planned
        used = self.audit.num_records - len(self.audit.missing()) - len(self.damaged)
        return (self.audit.count if self.exact else used) - len(self.audit.duplicates())

    @property
    def verdict(self) -> str:
        """For people."""
        return ("exact" if self.finished else "not finished") if self.exact else "NOT EXACT"


@dataclass(frozen=True)
class CoverageReport:
    """All epochs of a run, and the catalog that gives record ids their meaning."""

    catalog: Catalog
    epochs: tuple[EpochCoverage, ...]
    first_step: int  # where the audit begins; above 0 if the run resumed another run's checkpoint without its audit
    unaccounted: int  # updates that the newest checkpoint has, and the audit does not

    @property
    def exact(self) -> bool:
        """Whether every finished epoch used every record as often as planned, and no epoch any record more often."""
        return not self.first_step and not self.unaccounted and all(epoch.exact for epoch in self.epochs)


def read_coverage(run: Path) -> CoverageReport:
    """Replay a run folder's audit. Raises UsageError: there is no audit, or a file of it is missing, damaged or
    contradicts the others, or may not be read."""
    try:
        return _read_coverage(run)
    except PermissionError as error:
        raise UsageError(
            f"{error.filename} cannot be read: {error.strerror}.",
            "No audit can be read there.",
            f"let this user read {run} and all that is in it.",
        ) from error


def _read_coverage(run: Path) -> CoverageReport:
    if not run.is_dir():
        raise UsageError(
            f"There is no folder {run}.", "No audit can be read there.", "name the folder that was --output-dir."
        )
    folder = run / "audit"
    if (folder / PIPE_NOTE).exists():
        raise UsageError(
            f"{run} was trained from pipes.",
            "Their records have no ids that outlive a pass, so no audit of them was kept.",
            "train from files for a proof by ids.",
        )
    if not (folder / LEDGER).exists():
        raise UsageError(
            f"{run} holds no audit.",
            "Nothing says which records its training used.",
            "name the folder of a run, the one that was given as --output-dir.",
        )
    catalog = _catalog(folder / CATALOG)
    started, segments = replay(folder / LEDGER)
    if started["data"] != catalog.fingerprint:
        raise UsageError(
            f"The audit of {run} speaks of the data {started['data'][:12]}….",
            f"The catalog beside it is of {catalog.fingerprint[:12]}….",
            "restore the audit folder.",
        )
    per_epoch = started["steps_per_epoch"]
    first = segments[0]["first"] if segments else 0
    last = max((segment["end"] for segment in segments), default=0)
    numbers = range(1 + first // per_epoch, 1 - (-last // per_epoch))
    check_epochs(folder / LEDGER, per_epoch, segments, len(numbers))
    epochs = tuple(_epoch(number, per_epoch, segments, folder, catalog) for number in numbers)
    saved = CheckpointStore(run / "checkpoints", keep=1).paths()
    newest = int(saved[-1].name.removeprefix("step_")) if saved else 0  # how many updates it has
    return CoverageReport(catalog, epochs, first, max(0, newest - last))


def _catalog(path: Path) -> Catalog:
    try:
        return Catalog.load(path)
    except ShardingError as error:
        raise UsageError(error.fact, "Without it record ids have no meaning.", "restore the audit folder.") from error


def _epoch(number: int, per_epoch: int, segments: list[Line], folder: Path, catalog: Catalog) -> EpochCoverage:
    records = len(catalog)
    first, end = (number - 1) * per_epoch, number * per_epoch
    of_epoch = [segment for segment in segments if first <= segment["first"] < end]
    parts = [_segment(folder / segment["file"], records) for segment in of_epoch]
    audit = CoverageAudit.union([CoverageAudit(records), *parts])
    damaged = tuple(sorted({record_id for segment in of_epoch for record_id in segment["damaged"]}))
    if damaged and damaged[-1] >= records:
        raise damaged_ledger(folder / LEDGER, f"it has a damaged record {damaged[-1]} of {records}")
    audit.exclude(np.array(damaged, np.int64))
    is_last = not any(segment["first"] >= end for segment in segments)
    return EpochCoverage(
        number=number,
        audit=audit,
        steps=sum(segment["end"] - segment["first"] for segment in of_epoch),
        of_steps=per_epoch,
        gaps=tuple(_gaps(first, max((s["end"] for s in of_epoch), default=first) if is_last else end, of_epoch)),
        world_sizes=tuple(dict.fromkeys(segment["world_size"] for segment in of_epoch)),
        damaged=damaged,
        unlike=_unlike(audit, catalog, number - 1, damaged),
    )


def _unlike(audit: CoverageAudit, catalog: Catalog, epoch: int, damaged: tuple[int, ...]) -> UnlikeUses | None:
    if catalog.draws is None:
        return None
    return UnlikeUses.of(audit, planned_counts(catalog.draws, len(catalog), epoch), damaged)


def _segment(path: Path, records: int) -> CoverageAudit:
    try:
        return CoverageAudit.from_bytes(final_path(path).read_bytes(), records)
    except (OSError, ShardingError) as error:
        reason = error.fact.rstrip(".") if isinstance(error, ShardingError) else error.strerror
        raise UsageError(
            f"{path} cannot be read: {reason}.",
            "The ledger beside it says that it holds the records of some steps.",
            "restore the audit folder.",
        ) from error


def _gaps(first: int, end: int, segments: list[Line]) -> Iterator[tuple[int, int]]:
    at = first
    for segment in segments:
        if segment["first"] > at:
            yield at, segment["first"]
        at = segment["end"]
    if at < end:
        yield at, end
