"""The reports of all ranks on one stall, in a folder that they share, as their collectives hang; and what they say."""

import json
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from hvdtrain.files import write_atomically, write_json

NAME: Final = re.compile(r"(rank|host_of_rank)_(\d{1,7})\.json")
"""Of a file with the report of a rank, or with those that a rank has gathered on its host."""

LOOK_SECONDS: Final = 0.2  # between two looks for reports of others

_NAMED: Final = 8  # ranks in a sentence
_SAME: Final = "All ranks wait in the same collective: look at the network between them."
_DIFFERENT: Final = (
    "They wait in different collectives, so none of them can end: look for code that runs one on some ranks only."
)


@dataclass(frozen=True, slots=True)
class Report:
    rank: int
    host: str
    phase: str  # as `Activity`
    step: int
    seconds: float  # how long it has been doing this
    waits_in: str | None  # the collective that it waits in; None if it waits for no rank
    reads: str = ""  # what is being read, in the phases of data
    computes: bool = False  # whether it uses the CPU
    last_collective: str = ""  # in which it waited before; "" if there was none
    works: bool = False  # whether it does something alone, for which the others wait and which has a limit of its own


@dataclass(frozen=True, slots=True)
class Finding:
    """What the reports say together."""

    explanation: str
    is_busy: bool  # whether some rank computes, or does something that has a limit of its own
    is_ours: bool  # whether it is this rank that tells it


def found(reports: Mapping[int, Report], size: int, rank: int) -> Finding:
    """What `rank` finds in the reports of a run of `size` ranks; the lowest one that reports tells it."""
    is_ours = min(reports, default=rank) >= rank
    return Finding(explain(reports, size), any(_is_busy(report) for report in reports.values()), is_ours)


def _is_busy(report: Report) -> bool:
    return report.waits_in is None and (report.computes or report.works or report.phase == "checkpoint")


def explain(reports: Mapping[int, Report], size: int) -> str:
    """One sentence for each group of ranks, those that keep the others waiting first. A rank that has no report is
    frozen, or gone."""
    silent = [rank for rank in range(size) if rank not in reports]
    busy = [report for _, report in sorted(reports.items()) if report.waits_in is None]
    waiting = [report for _, report in sorted(reports.items()) if report.waits_in is not None]
    sentences = [_silent(silent)] if silent else []
    sentences += [_busy(report) for report in busy[:_NAMED]]
    if len(busy) > _NAMED:
        sentences.append(f"{len(busy) - _NAMED} more ranks do something else than wait, too.")
    collectives = list(dict.fromkeys(report.waits_in for report in waiting))
    sentences += [_waiting([r for r in waiting if r.waits_in == name], not (silent or busy)) for name in collectives]
    if not silent and not busy:
        sentences.append(_SAME if len(collectives) == 1 else _DIFFERENT)
    return " ".join(sentences)


def _silent(ranks: Sequence[int]) -> str:
    has = "has" if len(ranks) == 1 else "have"
    is_frozen = "it is frozen or gone" if len(ranks) == 1 else "they are frozen or gone"
    return f"{_ranks(ranks)} {has} reported nothing: {is_frozen}, or the run folder is not the same there."


def _busy(report: Report) -> str:
    who, since = f"rank {report.rank} on {report.host}", f"for {report.seconds:.0f} s"
    doing = {
        "start": f"has been starting {since}",
        "data": f"has been in data loading for step {report.step + 1} {since}",
        "validation data": f"has been in data loading for validation after step {report.step} {since}",
        "step": f"has been in training step {report.step + 1} {since}",
        "validation step": f"has been in validation after step {report.step} {since}",
        "checkpoint": f"has been saving the checkpoint of step {report.step} {since}",
        "end": f"has been ending the run after step {report.step} {since}",
    }[report.phase]
    reads = f", {report.reads}" if report.reads else ""
    computes = ""
    if report.phase in ("step", "validation step"):
        computes = ", and computes" if report.computes else ", and uses no CPU: it is blocked"
    last = f" The last collective that it entered is {report.last_collective}." if report.last_collective else ""
    return f"{who} {doing}{reads}{computes}.{last}".replace("rank", "Rank", 1)


def _waiting(reports: Sequence[Report], alone: bool) -> str:
    ranks = [report.rank for report in reports]
    longest, step = max(report.seconds for report in reports), max(report.step for report in reports)
    verb = "has" if len(ranks) == 1 else "have"
    too = "" if alone else ", for the others"
    collective = reports[0].waits_in or "a collective"
    return f"{_ranks(ranks)} {verb} waited {longest:.0f} s in {collective} of step {step + 1}{too}."


def _ranks(ranks: Sequence[int]) -> str:
    shown = [str(rank) for rank in ranks[:_NAMED]]
    if len(ranks) > _NAMED:
        shown.append(f"{len(ranks) - _NAMED} more")
    joined = " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
    return f"Rank {joined}" if len(ranks) == 1 else f"Ranks {joined}"


@dataclass(frozen=True)
class StallReports:
    """Files of one start of a run of `size` ranks, in RUN/stalls/START."""

    folder: Path
    size: int

    def write(self, report: Report) -> None:
        """This rank's report, and the stacks of its threads. Raises OSError: it cannot be written."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / f"rank_{report.rank}.stacks.txt", stacks().encode())
        write_json(self._report(report.rank), asdict(report))

    def withdraw(self, rank: int) -> None:
        """This rank goes on: its report would be taken for one on the next stall."""
        with suppress(OSError):
            self._report(rank).unlink(missing_ok=True)

    def read(self) -> dict[int, Report]:
        """Of all ranks that have one."""
        reports: dict[int, Report] = {}
        for name in self.names():
            with suppress(OSError, ValueError, TypeError):  # gone, or of another version
                content = json.loads((self.folder / name[0]).read_text())
                reports |= {each.rank: each for each in _reports(content)}
        return reports

    def names(self) -> Iterator[re.Match[str]]:
        """Of the files with reports, as `NAME` takes them apart; none where there is no folder."""
        with suppress(OSError):
            yield from filter(None, [NAME.fullmatch(path.name) for path in self.folder.iterdir()])

    def find(self, rank: int, seconds: float, wait: Callable[[float], object]) -> Finding:
        """What the reports say that are there once all are, or after so many seconds, or when `wait`, which is given
        seconds, says so."""
        end = time.monotonic() + seconds
        while len(reports := self.read()) < self.size and time.monotonic() < end:
            if wait(LOOK_SECONDS):
                break
        return found(reports, self.size, rank)

    def write_explanation(self, text: str) -> Path:
        with suppress(OSError), self._explanations.open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")
        return self._explanations

    def told(self) -> int:
        """Bytes of all explanations so far; more after each one."""
        with suppress(OSError):
            return self._explanations.stat().st_size
        return 0

    @property
    def _explanations(self) -> Path:
        return self.folder / "explanation.txt"

    def _report(self, rank: int) -> Path:
        return self.folder / f"rank_{rank}.json"


def _reports(content: Any) -> list[Report]:
    """Of one rank, or of a host. Raises TypeError: of another version."""
    return [Report(**each) for each in (content if isinstance(content, list) else [content])]


def stacks() -> str:
    """The stacks of all threads of this process but the one that asks, the main thread's first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    asking, main = threading.get_ident(), threading.main_thread().ident
    frames = sorted(sys._current_frames().items(), key=lambda item: item[0] != main)
    parts = [f"process {os.getpid()}"]
    for ident, frame in frames:
        if ident != asking:
            parts.append(f"\nthread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}")
    return "\n".join(parts)
