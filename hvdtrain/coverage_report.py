"""From a run's audit to a verdict: was every record used once in every epoch?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from data_sharding import Catalog, CoverageAudit
from hvdtrain.coverage import CATALOG, LEDGER
from hvdtrain.errors import UsageError


@final
@dataclass(frozen=True)
class EpochCoverage:
    """What the committed steps of one epoch were trained on.

    Attributes:
        epoch: its number.
        audit: which records, with damaged ones excluded.
        steps: committed steps, and `of_steps`: steps that an epoch has.
        gaps: steps that no segment accounts for, as [first, end) counted from the start of training.
        world_sizes: numbers of workers that took part, in the order of time.
        damaged: ids of records that were left out.
    """

    epoch: int
    audit: CoverageAudit
    steps: int
    of_steps: int
    gaps: tuple[tuple[int, int], ...]
    world_sizes: tuple[int, ...]
    damaged: tuple[int, ...]

    @property
    def finished(self) -> bool:
        """Whether all its steps are accounted for."""
        return self.steps == self.of_steps

    @property
    def exact(self) -> bool:
        """No record twice; and, where the epoch was finished, none missing."""
        return not self.gaps and not len(self.audit.duplicates()) and (not self.finished or self.audit.complete)


@final
@dataclass(frozen=True)
class CoverageReport:
    """All epochs of a run, and the catalog that gives record ids their meaning."""

    catalog: Catalog
    epochs: tuple[EpochCoverage, ...]

    @property
    def exact(self) -> bool:
        """Whether every finished epoch used every record once, and no epoch any record twice."""
        return all(epoch.exact for epoch in self.epochs)


def read_coverage(run: Path) -> CoverageReport:
    """Replay a run folder's audit.

    Raises:
        UsageError: there is no audit, or a file of it is missing or contradicts the others.
        data_sharding.ShardingError: a file of it is damaged.
    """
    folder = run / "audit"
    if not (folder / LEDGER).exists():
        raise UsageError(
            f"{run} holds no audit.",
            "Nothing says which records its training used.",
            "name the folder of a run, the one that was given as --output-dir.",
        )
    catalog = Catalog.load(folder / CATALOG)
    started, segments = _replay(folder / LEDGER)
    if started["data"] != catalog.fingerprint:
        raise UsageError(
            f"The audit of {run} speaks of the data {started['data'][:12]}….",
            f"The catalog beside it is of {catalog.fingerprint[:12]}….",
            "restore the audit folder.",
        )
    per_epoch = started["steps_per_epoch"]
    last = max((segment["end"] for segment in segments), default=0)
    numbers = range((last + per_epoch - 1) // per_epoch)
    epochs = tuple(_epoch(number, per_epoch, segments, folder, len(catalog)) for number in numbers)
    return CoverageReport(catalog, epochs)


def _replay(ledger: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The last start, and the segments that still count: a start undoes those that end after it."""
    started: dict[str, Any] | None = None
    segments: list[dict[str, Any]] = []
    for line in _lines(ledger):
        if line["event"] == "started":
            started = line
            segments = [segment for segment in segments if segment["end"] <= line["step"]]
        else:
            segments.append(line)
    if started is None:
        raise UsageError(f"{ledger} is empty.", "It says nothing about the run.", "name another run folder.")
    return started, sorted(segments, key=lambda segment: int(segment["first"]))


def _lines(ledger: Path) -> Iterator[dict[str, Any]]:
    """Whole lines. One cut short was being written when its process was killed: it never counted."""
    for text in ledger.read_text().splitlines():
        try:
            yield json.loads(text)
        except json.JSONDecodeError:
            continue


def _epoch(number: int, per_epoch: int, segments: list[dict[str, Any]], folder: Path, records: int) -> EpochCoverage:
    first, end = number * per_epoch, (number + 1) * per_epoch
    own = [segment for segment in segments if first <= segment["first"] < end]
    audit = CoverageAudit.union([CoverageAudit(records), *(_segment(folder / segment["file"]) for segment in own)])
    damaged = tuple(sorted({record_id for segment in own for record_id in segment["damaged"]}))
    audit.exclude(np.array(damaged, np.int64))
    is_last = not any(segment["first"] >= end for segment in segments)
    return EpochCoverage(
        epoch=number,
        audit=audit,
        steps=sum(segment["end"] - segment["first"] for segment in own),
        of_steps=per_epoch,
        gaps=tuple(_gaps(first, max((s["end"] for s in own), default=first) if is_last else end, own)),
        world_sizes=tuple(dict.fromkeys(segment["world_size"] for segment in own)),
        damaged=damaged,
    )


def _segment(path: Path) -> CoverageAudit:
    try:
        return CoverageAudit.from_bytes(path.read_bytes())
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}.",
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
