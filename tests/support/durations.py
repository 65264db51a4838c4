"""How long each test takes: noted by every run, and compared with what is committed in tests/durations.json.

tests/conftest.py uses the plugin `Noting`. A run of pytest notes its tests' seconds in .pytest_cache/durations, a file
for each folder of tests; `make test` lists in the end which grew most, and `make durations` makes the reference anew.
Workers of pytest-xdist begin with the files that take longest by the reference.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "tests" / "durations.json"
NOTED = ROOT / ".pytest_cache" / "durations"
KEPT_SECONDS = 1.0
"""Shorter tests are not in the reference."""
SHORT_SECONDS = 0.2
"""To look at all processes takes milliseconds, which thousands of tests would add up."""
GROWN_SECONDS, GROWN_FACTOR = 3.0, 1.5
"""Both of what a test must have grown by to be listed: less is noise of a machine on which others run."""


class Taken(NamedTuple):
    """Seconds of a test, those of the fixtures that were set up for it included.

    Attributes: `cpu`: of the test's process and of all that it has started, with its ranks and theirs.
    """

    wall: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.wall:.1f} s, CPU time {self.cpu:.1f} s"


Durations = dict[str, Taken]


class Noting:
    """A plugin that adds up what the phases of each test take, and writes it in the end."""

    def __init__(self) -> None:
        self._measured_s = self._measured_at = 0.0
        self._taken: Durations = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        """In the process that runs the test; what a short one takes counts for the next."""
        report = yield
        if report.when == "teardown" and time.monotonic() - self._measured_at > SHORT_SECONDS:  # type: ignore[attr-defined]
            now, self._measured_at = cpu_seconds(), time.monotonic()
            report.cpu_seconds, self._measured_s = round(now - self._measured_s, 2), now  # type: ignore[attr-defined]
        return report

    def pytest_runtest_logstart(self) -> None:
        if not self._measured_at:
            self._measured_s, self._measured_at = cpu_seconds(), time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """In the process that the user started."""
        wall, cpu = self._taken.get(report.nodeid, Taken(0.0, 0.0))
        self._taken[report.nodeid] = Taken(wall + report.duration, cpu + getattr(report, "cpu_seconds", 0.0))

    def pytest_configure(self, config: pytest.Config) -> None:
        """With several workers, files go to them in the order of collection, and not by how many tests they have."""
        if hasattr(config.option, "loadscopereorder"):
            config.option.loadscopereorder = False

    def pytest_collection_modifyitems(self, items: list[pytest.Item], config: pytest.Config) -> None:
        """The longest files first: started last, one of them would keep one worker busy in the end."""
        if hasattr(config, "workerinput"):
            seconds = seconds_of_files(reference())
            items.sort(key=lambda item: -seconds.get(_file(item.nodeid), 0.0))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        in_worker = hasattr(session.config, "workerinput")  # of pytest-xdist
        in_test = not session.config.pluginmanager.hasplugin("cacheprovider")  # which runs tests by itself
        if not in_worker and not in_test:
            note(self._taken)


def cpu_seconds() -> float:
    """Of this process, what it has waited for, and its living descendants."""
    return sum(os.times()[:4]) + sum(map(_cpu_seconds_of, _children("self")))


def _cpu_seconds_of(process: str) -> float:
    try:
        words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # ended meanwhile
        return 0.0
    return sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK") + sum(map(_cpu_seconds_of, _children(process)))


def _children(process: str) -> list[str]:
    try:
        return [
            child
            for task in Path(f"/proc/{process}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except OSError:
        return []


def note(taken: Durations) -> None:
    """Keep them, beside those of files that did not run now."""
    NOTED.mkdir(parents=True, exist_ok=True)
    ran = set(map(_file, taken))
    for folder in set(map(_folder, taken)):
        path = NOTED / f"{folder}.json"
        kept = {test: seconds for test, seconds in _read(path).items() if _file(test) not in ran}
        now = kept | {test: seconds for test, seconds in taken.items() if _folder(test) == folder}
        _write(path, {test: seconds for test, seconds in now.items() if (ROOT / _file(test)).exists()})


def _file(test: str) -> str:
    return test.partition("::")[0]


def _folder(test: str) -> str:
    """ "unit" of "tests/unit/cli/test_main.py::test_one"."""
    return test.split("/")[1]


def _read(path: Path) -> Durations:
    try:
        return {test: Taken(*seconds) for test, seconds in json.loads(path.read_text()).items()}
    except FileNotFoundError:
        return {}


def _write(path: Path, durations: Durations) -> None:
    """A line for each test, so that changes of the reference can be read."""
    lines = [f"{json.dumps(test)}: [{taken.wall:.1f}, {taken.cpu:.1f}]" for test, taken in sorted(durations.items())]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def noted(since: float = 0.0) -> Durations:
    """What the last runs have noted. Args: `since`: only of folders whose tests have run after that time."""
    files = [path for path in NOTED.glob("*.json") if path.stat().st_mtime >= since]
    return {test: seconds for path in files for test, seconds in _read(path).items()}


def reference() -> Durations:
    return _read(REFERENCE)


def seconds_of_files(durations: Durations) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for test, taken in durations.items():
        seconds[_file(test)] = seconds.get(_file(test), 0.0) + taken.wall
    return seconds


def grown(now: Durations, before: Durations) -> list[str]:
    """Lines that name the tests which take longer than before, the most grown first.

    How fast this machine is today is taken out: by the median of what the tests of both lists take, as a factor.
    """
    factors = [now[test].wall / before[test].wall for test in now.keys() & before.keys()]
    speed = statistics.median(factors) if factors else 1.0
    usual = {test: before.get(test, Taken(KEPT_SECONDS, 0.0)).wall * speed for test in now}
    more = {test: now[test].wall - usual[test] for test in now if now[test].wall > GROWN_FACTOR * usual[test]}
    longest = sorted((test for test in more if more[test] > GROWN_SECONDS), key=more.__getitem__, reverse=True)
    return [f"+{more[test]:.1f} s: {test} ({now[test]}; {_was(test, before)})" for test in longest]


def _was(test: str, before: Durations) -> str:
    return f"was {before[test]}" if test in before else "not in the reference"


def keep_as_reference() -> None:
    """What the last runs have noted becomes the reference; of folders that have not run, the old one stays."""
    now = noted()
    folders = {_folder(test) for test in now}
    old = {test: taken for test, taken in reference().items() if _folder(test) not in folders}
    _write(REFERENCE, old | {test: taken for test, taken in now.items() if taken.wall >= KEPT_SECONDS})


if __name__ == "__main__":
    keep_as_reference()
    print(f"{len(reference())} tests of {KEPT_SECONDS:.0f} s and more are in {REFERENCE.relative_to(ROOT)}")
