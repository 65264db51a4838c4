"""A worker that the kernel ends for lack of memory, and clocks that jump."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.jobs import ENDLESS, WORKERS, Job
from support.processes import python_path
from support.runs import lines_of

Start = Callable[..., Job]
Record = Callable[[int, str, Job], None]

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[2]
JUMPING = Path(__file__).parent / "jumping_clock"
LEAST_BYTES = 2**20


class MemoryGroup:
    """A control group of the kernel, version 1 or 2. Raises OSError where none can be made."""

    def __init__(self) -> None:
        root = Path("/sys/fs/cgroup")
        is_old = (root / "memory").is_dir()
        self.path = (root / "memory" if is_old else root) / f"hvdtrain-test-{os.getpid()}"
        self._limit = self.path / ("memory.limit_in_bytes" if is_old else "memory.max")
        self.path.mkdir()
        if not self._limit.exists():
            self.path.rmdir()
            raise OSError("no memory controller")

    def squeeze(self, process: int) -> None:
        """From now on the process may take no more memory than almost nothing."""
        self._limit.write_text(str(LEAST_BYTES))
        (self.path / "cgroup.procs").write_text(str(process))

    def close(self) -> None:
        with suppress(OSError):
            self.path.rmdir()


@pytest.fixture
def group() -> Iterator[MemoryGroup]:
    try:
        made = MemoryGroup()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    yield made
    made.close()


def test_a_worker_without_memory_is_killed_and_the_report_says_why(
    start: Start, record: Record, group: MemoryGroup
) -> None:
    """What it takes from now on counts: the next batches are more than the group may have."""
    job = start("-np", "2", "--max-restarts", "2", "--backoff", "0.2")
    job.await_lines()
    worker = job.workers()[1]
    job.strike(lambda: group.squeeze(worker))
    job.await_words(r"rank 1 of 2 was killed by SIGKILL; out of memory\?")
    job.await_lines()
    job.stop()
    record(25, "a control group without memory left", job)


def test_clocks_that_jump_end_nothing(start: Start, record: Record) -> None:
    """The launcher's and all workers': each look at the clock is days away from the one before."""
    options = (*ENDLESS[:-2], "--checkpoint-every", "1s", "--watchdog", "60", "--watchdog-action", "end")
    flags = ("-np", "2", "--min-workers", "1", "--max-restarts", "2")
    job = start(*flags, options=options, interpreter="fresh", **python_path(JUMPING, WORKERS))
    job.await_lines()
    job.strike(lambda: None)
    job.await_lines(6)
    job.stop()
    lines = lines_of(job.out)
    times = [line["time"] for line in lines]
    assert max(times) - min(times) > 86_400, "the clock did not jump"
    assert not job.events("resumed"), job.output
    assert "WARNING" not in job.output, job.output
    assert not (job.out / "stalls").exists()
    record(32, "clocks that jump by days", job)


FOR_PEOPLE = {
    "hvdtrain/doctor/examination.py": "compares the clocks of hosts",
    "hvdtrain/audit/ledger.py": "when a line was written",
    "hvdtrain/run/sinks/metrics_file.py": "when a line was written",
    "hvdtrain/checkpoints/inspection.py": "how old a checkpoint is",
    "hvdtrain/run/assemble.py": "when a start began",
    "hvdtrain/run/watch/watchdog.py": "part of a folder's name",
    "hvdtrain/run/ending.py": "goodput over several starts",
    "hvdtrain/launch/sagemaker/request.py": "part of a job's name",
    "hvdtrain/run/run_folder.py": "part of a folder's name",
    "hvdtrain/launch/supervisor/restarts.py": "part of a folder's name",
    "docker/health.py": "how old a file is, by its own time",
    "hvdtrain/run/watch/heartbeat.py": "when a heartbeat was written",
    "hvdtrain/history/heartbeats.py": "how old a heartbeat is, which another host may have written",
    "hvdtrain/history/run_state.py": "how old the last sign of a run is",
    "hvdtrain/history/overview.py": "how long a run has gone on",
    "hvdtrain/cli/chaos.py": "when a drill was made",
    "hvdtrain/cli/python_calls/private_folder.py": "how old a folder is, which is locked for as long as it is used",
    "hvdtrain/cli/ls.py": "how old a run is",
    "hvdtrain/report/page.py": "when a page was made",
    "hvdtrain/report/wording.py": "when something happened",
    "hvdtrain/run/sinks/metrics_table.py": "when a row was written",
    "hvdtrain/run/sinks/logger_sink.py": "when something was measured",
    "hvdtrain/run/sinks/tensorboard_logger.py": "when something was measured, and part of a file's name",
    "hvdtrain/run/tracing/rank_trace.py": "when a trace began",
    "hvdtrain/torch/run_record.py": "when a run of a user's own loop began, and a line was written",
}
"""Where the time of day is asked for, which somebody may set: what for. No deadline depends on it."""

_OF_DAY = {"time.time", "time.time_ns", "time.strftime", "time.localtime", "datetime.now", "datetime.utcnow"}


def asks_for_the_time_of_day(path: Path) -> bool:
    """Whether one of its calls does, or a sleep is measured by it."""
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    return any(ast.unparse(call.func).removeprefix("datetime.datetime.") in _OF_DAY for call in calls)


def test_no_wait_is_measured_by_the_time_of_day(tmp_path: Path) -> None:
    (tmp_path / "careless.py").write_text("import time\nend = time.time() + 5\nwhile time.time() < end: pass\n")
    assert asks_for_the_time_of_day(tmp_path / "careless.py")
    folders = [ROOT / name for name in ("hvdtrain", "data_sharding", "docker")]
    files = {path.resolve() for folder in folders for path in folder.rglob("*.py")}
    found = {str(path.relative_to(ROOT)) for path in files if asks_for_the_time_of_day(path)}
    assert found == set(FOR_PEOPLE)
