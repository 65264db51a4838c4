"""Run all checks and tests, those that wait beside those that compute, and say how long each part took.

`make test` calls this, and so does `make lint` with the name of one part.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from support.durations import grown, noted, reference

PYTHON = shlex.quote(sys.executable)
BINARIES = os.path.dirname(PYTHON)
SOURCES = "hvdtrain data_sharding launch docker docs tests benchmarks examples setup.py"
PYTEST = f"{PYTHON} -m pytest --durations 15 --dist loadfile"

PARTS = {
    "lint": f"{BINARIES}/ruff check {SOURCES} && {BINARIES}/ruff format --check {SOURCES} && "
    f"{BINARIES}/lint-imports && {BINARIES}/codespell",
    "types": f"{BINARIES}/mypy",
    "docs": f"{PYTHON} docs/builder",
    "unit": f"{PYTEST} --numprocesses 3 tests/unit",
    # Of several ranks each: with more at once on two cores, each test takes more of the processors' time.
    "parallel": f"{PYTEST} --numprocesses 3 tests/parallel tests/faults",
    "cluster": f"{PYTHON} tests/cluster/run.py --where-possible --numprocesses 2 --dist loadfile --durations 15",
    "browser": f"{PYTHON} tests/browser/run.py --where-possible --durations 5",
    # Installs, and perhaps builds Horovod: in the time that tests of several ranks leave to the processors.
    "newest": f"nice -n 19 {PYTHON} tests/newest_python.py",
}
STAGES = [["lint"], ["unit", "types", "docs"], ["parallel", "cluster", "browser", "newest"]]
"""One after the other; the parts of a stage run at once. The first failing stage is the last one."""
ONLY_IN_CI = {"newest"}


@dataclass(frozen=True)
class Ended:
    """How a part has ended. Attributes: `computed_s`: seconds of all processes together, users' and system's."""

    part: str
    code: int
    took_s: float
    computed_s: float

    def __str__(self) -> str:
        how = "passed" if self.code == 0 else f"FAILED with exit code {self.code}"
        return f"{self.part:10} {how} in {self.took_s:6.0f} s; CPU time {self.computed_s:6.0f} s"


def run_stage(parts: list[str]) -> list[Ended]:
    """Run parts at once. The first one's output is seen as it comes, and others' when they have all ended."""
    began, ended = time.monotonic(), []
    logs = {part: tempfile.TemporaryFile() for part in parts[1:]}  # noqa: SIM115  read in the end
    started = {part: _start(part, logs.get(part)) for part in parts}
    of_process = {process.pid: part for part, process in started.items()}
    for _ in parts:
        process, status, usage = os.wait3(0)
        code, computed = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
        ended.append(Ended(of_process[process], code, time.monotonic() - began, computed))
    for part, log in logs.items():
        print(f"\n{f' output of {part} ':=^80}", flush=True)
        log.seek(0)
        sys.stdout.buffer.write(log.read())
        sys.stdout.flush()
    return ended


def _start(part: str, log: BinaryIO | None) -> subprocess.Popen[bytes]:
    title = f" {part} " if log is None else f" beside it: {part} "
    print(f"\n{title:=^80}\n{PARTS[part]}", flush=True)
    return subprocess.Popen(["bash", "-c", PARTS[part]], stdout=log, stderr=log)


def slower_tests(since: float) -> Iterator[str]:
    """Those of what has run after `since` that take longer than by the reference, the ten most grown ones."""
    lines = grown(noted(since), reference())
    if lines:
        yield "\nTests that take longer than by tests/durations.json (`make durations` accepts it):"
        yield from lines[:10]


def main() -> int:
    """Returns 0 if all parts passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    choices = ["all", *PARTS]
    parser.add_argument("parts", nargs="*", choices=choices, default="all", help="only these, one after the other")
    chosen = parser.parse_args().parts
    left_out = set() if os.environ.get("CI") else ONLY_IN_CI
    every = [[part for part in stage if part not in left_out] for stage in STAGES]
    stages = every if chosen == "all" else [[part] for part in chosen]
    ended: list[Ended] = []
    began = time.time()
    for stage in stages:
        ended += run_stage(stage)
        if any(each.code for each in ended):
            break
    print(*slower_tests(began), "", *ended, sep="\n")
    not_run = [part for stage in stages for part in stage if part not in {each.part for each in ended}]
    if not_run:
        print(f"not run: {', '.join(not_run)}")
    return int(any(each.code for each in ended))


if __name__ == "__main__":
    sys.exit(main())
