"""Check a run's audit: was every record used once, or as often as planned, in every epoch?

Only those lines of the ledger count that led to the weights that are there.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_sharding import Catalog, CoverageAudit
from data_sharding.draws.draw_rule import planned_counts
from data_sharding.errors import ShardingError
from hvdtrain.audit.ledger import CATALOG, LEDGER, PIPE_NOTE
from hvdtrain.checkpoints.store import CheckpointStore
from hvdtrain.errors import UsageError

Line = dict[str, Any]
_KEYS = {"started": {"step", "steps_per_epoch", "data"}, "segment": {"first", "end", "world_size", "damaged", "file"}}


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
    contradicts the others."""
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
    last = max((segment["end"] for segment in segments), default=0)
    numbers = range(1, 1 - (-last // per_epoch))
    epochs = tuple(_epoch(number, per_epoch, segments, folder, catalog) for number in numbers)
    first = segments[0]["first"] if segments else 0
    saved = CheckpointStore(run / "checkpoints", keep=1).paths()
    newest = int(saved[-1].name.removeprefix("step_")) if saved else 0  # how many updates it has
    return CoverageReport(catalog, epochs, first, max(0, newest - last))


def _catalog(path: Path) -> Catalog:
    try:
        return Catalog.load(path)
    except ShardingError as error:
        raise UsageError(error.fact, "Without it record ids have no meaning.", "restore the audit folder.") from error


def _epoch(
    number: int, per_epoch: int, segments: list[dict[str, Any]], folder: Path, catalog: Catalog
) -> EpochCoverage:
    records = len(catalog)
    first, end = (number - 1) * per_epoch, number * per_epoch
    of_epoch = [segment for segment in segments if first <= segment["first"] < end]
    parts = [_segment(folder / segment["file"], records) for segment in of_epoch]
    audit = CoverageAudit.union([CoverageAudit(records), *parts])
    damaged = tuple(sorted({record_id for segment in of_epoch for record_id in segment["damaged"]}))
    if damaged and damaged[-1] >= records:
        raise _damaged(folder / LEDGER, f"it has a damaged record {damaged[-1]} of {records}")
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
        return CoverageAudit.from_bytes(path.read_bytes(), records)
    except (OSError, ShardingError) as error:
        reason = error.fact.rstrip(".") if isinstance(error, ShardingError) else error.strerror
        raise UsageError(
            f"{path} cannot be read: {reason}.",
            "The ledger beside it says that it holds the records of some steps.",
            "restore the audit folder.",
        ) from error


def _gaps(first: int, end: int, segments: list[dict[str, Any]]) -> Iterator[tuple[int, int]]:
    at = first
    for segment in segments:
        if segment["first"] > at:
            yield at, segment["first"]
        at = segment["end"]
    if at < end:
        yield at, end


class _Link(NamedTuple):
    """A segment, and the one before it in the training that it belongs to."""

    segment: Line
    before: "_Link | None"


def replay(ledger: Path) -> tuple[Line, list[Line]]:
    """The last start, and the segments that led to the current position, in the order of steps.

    A start at step s resumes from the checkpoint of step s, and keeps the segments up to the newest that ends there;
    what was trained beyond is another line of training, to which a later start may return. Raises UsageError: the
    ledger does not begin with a start, or has an unreadable line.
    """
    started: Line | None = None
    newest: dict[int, _Link] = {}
    current: _Link | None = None
    for line in _lines(ledger):
        if line["event"] == "started":
            started, current = line, newest.get(line["step"])
        else:
            current = newest[line["end"]] = _Link(line, current)
    if started is None:
        raise _damaged(ledger, "it names no start of the run")
    segments = []
    while current is not None:
        segments.append(current.segment)
        current = current.before
    return started, segments[::-1]


def _lines(ledger: Path) -> list[Line]:
    """All whole lines: one that was being written when its process was killed lacks its end, and never counted."""
    lines = []
    try:
        texts = ledger.read_text(errors="replace").split("\n")[:-1]
    except OSError as error:
        raise _damaged(ledger, error.strerror or str(error)) from error
    for number, text in enumerate(texts, start=1):
        line = _parsed(text)
        if line is None:
            raise _damaged(ledger, f"line {number} cannot be read")
        lines.append(line)
    return lines


def _parsed(text: str) -> Line | None:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    event = line.get("event") if isinstance(line, dict) else None
    if not isinstance(event, str) or event not in _KEYS or not _KEYS[event] <= line.keys():
        return None
    return line if (_is_start(line) if event == "started" else _is_segment(line)) else None


def _is_start(line: Line) -> bool:
    return _is_count(line["step"]) and _is_count(line["steps_per_epoch"], 1) and isinstance(line["data"], str)


def _is_segment(line: Line) -> bool:
    file, damaged = line["file"], line["damaged"]
    return (
        _is_count(line["first"])
        and _is_count(line["end"], line["first"])
        and _is_count(line["world_size"], 1)
        and isinstance(file, str)
        and Path(file).name == file  # in the audit's folder
        and isinstance(damaged, list)
        and all(map(_is_count, damaged))
    )


def _is_count(value: object, least: int = 0) -> bool:
    """No truth value, no float."""
    return type(value) is int and value >= least


def _damaged(ledger: Path, how: str) -> UsageError:
    return UsageError(
        f"{ledger} is damaged: {how}.", "It no longer says what the run used.", "restore the audit folder."
    )
