"""Reports of many workers on one stall: each host has one file in the run folder, and one worker reads all of them.

Workers of a host leave their reports on its local disk. The lowest rank of those writes them into one file of the run
folder, once a second at most, and so the lowest rank of all finds out what they say and leaves it there for the others.
If it does not, as it is frozen or gone, each rank finds out by itself what the reports say.
"""

import json
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Final

from hvdtrain.files import replace_quickly
from hvdtrain.run.watch.local_folder import LocalFolder
from hvdtrain.run.watch.stall_reports import Finding, Report, StallReports, found

_FINDING: Final = "finding.json"
_LOOK_SECONDS: Final = 1.0  # between two looks, and so between two writes of a host
_PATIENCE: Final = 2.0  # times what is waited for reports, until the finding of another rank must be there

_log = logging.getLogger("hvdtrain.run")


class HostStalls:
    """As `StallReports`: of one start of a run of `size` ranks, in RUN/stalls/START, which is `folder`; `local` is the
    folder of the run on this host."""

    def __init__(self, folder: Path, size: int, local: LocalFolder) -> None:
        self.folder, self.size = folder, size
        self._shared, self._meeting = StallReports(folder, size), local
        self._local = StallReports(local.path / "stalls" / folder.name, size)
        self._passed_on: dict[int, Report] = {}
        self._is_under_lower = False  # whether a lower rank has written reports into the run folder
        self._written: list[Path] = []  # what this rank must take back

    def write(self, report: Report) -> None:
        """As `StallReports.write`; into the run folder where the local one cannot be used."""
        try:
            self._meeting.make()
            self._local.write(report)
        except OSError as error:
            _log.warning("what this rank does was not left in %s, but in the run folder: %s", self._meeting.path, error)
            self._shared.write(report)

    def withdraw(self, rank: int) -> None:
        """As `StallReports.withdraw`."""
        for reports in (self._local, self._shared):
            reports.withdraw(rank)
        for path in self._written:
            with suppress(OSError):
                path.unlink(missing_ok=True)
        self._written, self._passed_on, self._is_under_lower = [], {}, False

    def read(self) -> dict[int, Report]:
        """Of this host, and what all hosts have passed on."""
        return self._shared.read() | self._local.read()

    def find(self, rank: int, seconds: float, wait: Callable[[float], object]) -> Finding:
        """As `StallReports.find`. Raises OSError: reports cannot be passed on."""
        begin = time.monotonic()
        while True:
            is_last = time.monotonic() - begin >= seconds
            finding = self._look(rank, is_last)
            if finding is not None:
                return finding
            if time.monotonic() - begin >= _PATIENCE * seconds or wait(_LOOK_SECONDS):
                return found(self.read(), self.size, rank)

    def write_explanation(self, text: str) -> Path:
        """As `StallReports.write_explanation`."""
        return self._shared.write_explanation(text)

    def told(self) -> int:
        """As `StallReports.told`."""
        return self._shared.told()

    def _look(self, rank: int, is_last: bool) -> Finding | None:
        """What another rank has found, or this one, if that is its turn."""
        here = self._local.read()
        if min(here, default=rank) < rank:
            return _finding(self._local.folder)
        if (finding := _finding(self.folder)) is not None:
            self._leave(self._local.folder, finding)
            return finding
        self._pass_on(rank, here)
        self._is_under_lower = self._is_under_lower or any(int(name[2]) < rank for name in self._shared.names())
        if self._is_under_lower:
            return None
        reports = self._shared.read() | here
        if len(reports) < self.size and not is_last:
            return None
        finding = found(reports, self.size, rank)
        for folder in (self.folder, self._local.folder):
            self._leave(folder, finding)
        return finding

    def _pass_on(self, rank: int, here: dict[int, Report]) -> None:
        """The reports of this host, if there are new ones."""
        if here == self._passed_on:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"host_of_rank_{rank}.json"
        replace_quickly(path.with_suffix(".stacks.txt"), _stacks_of(self._local.folder, sorted(here)).encode())
        replace_quickly(path, json.dumps([asdict(here[each]) for each in sorted(here)]).encode())
        self._written.append(path)
        self._passed_on = here

    def _leave(self, folder: Path, finding: Finding) -> None:
        """For the other ranks, of all hosts or of this one; where it cannot be left, they find out by themselves."""
        with suppress(OSError):
            replace_quickly(folder / _FINDING, json.dumps([finding.explanation, finding.is_busy]).encode())
            self._written.append(folder / _FINDING)


def _finding(folder: Path) -> Finding | None:
    """What another rank has left in `folder`."""
    with suppress(OSError, ValueError):
        explanation, is_busy = json.loads((folder / _FINDING).read_text())
        return Finding(str(explanation), bool(is_busy), is_ours=False)
    return None


def _stacks_of(folder: Path, ranks: Iterable[int]) -> str:
    """Of all ranks of a host; stacks that several ranks have are there once."""
    owners: dict[str, list[str]] = {}
    for rank in ranks:
        with suppress(OSError):
            process, _, stacks = (folder / f"rank_{rank}.stacks.txt").read_text().partition("\n")
            owners.setdefault(stacks, []).append(f"rank {rank}, {process}")
    return "\n\n".join("\n".join(names) + "\n" + stacks for stacks, names in owners.items())
