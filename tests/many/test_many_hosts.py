"""`hvdtrain launch ssh` over fifty emulated hosts with one worker each: they train, go on as forty, lose a worker and a
host, which comes back, and stop.

`make test-many` runs it, and `make test` does not. Needs root, as tests/cluster does, whose hosts these are.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cluster" / "emulation"))

from emulated_hosts import EmulatedHosts  # noqa: E402
from launched_training import one  # noqa: E402
from requirements import obstacle  # noqa: E402
from slot import taken_slot  # noqa: E402
from support.jobs import ENDLESS, WORKERS  # noqa: E402
from support.process_table import kill  # noqa: E402
from support.processes import Spawned, python_path, wait_until  # noqa: E402
from support.runs import result_of, trained_lines  # noqa: E402

from hvdtrain.audit.audit_summary import read_coverage  # noqa: E402
from hvdtrain.history.heartbeats import read_heartbeats  # noqa: E402

HOSTS, FEWER = 50, 40
PATIENCE_S = 1200.0
"""What is done by one host after the other on few cores."""
LINK_S = 60
OPTIONS = (*ENDLESS, "--global-batch-size", "200", "--log-interval", "5", "--progress", "none", "--output-dir", "out")
FLAGS = ("--start-timeout", str(PATIENCE_S), "--grace", "300", "--link-timeout", str(LINK_S))

pytestmark = pytest.mark.timeout(3600)


@pytest.fixture
def fifty() -> Iterator[EmulatedHosts]:
    if reason := obstacle():
        pytest.skip(reason)
    with taken_slot() as slot, neighbours_for_all():
        cluster = EmulatedHosts(slot, HOSTS)
        try:
            cluster.start()
            yield cluster
            cluster.wait_until_quiet(60)
        finally:
            cluster.sweep()
            cluster.stop()


@contextmanager
def neighbours_for_all() -> Iterator[None]:
    """Room in the table of neighbours that all namespaces share: else hosts have "no route" to some others."""
    limits = [Path(f"/proc/sys/net/ipv4/neigh/default/gc_thresh{number}") for number in (3, 2)]
    before = [limit.read_text() for limit in limits]
    try:
        for limit in limits:
            limit.write_text(str(4 * HOSTS**2))
        yield
    finally:
        for limit, text in zip(limits, before, strict=True):
            limit.write_text(text)


def test_they_train_and_go_on_as_fewer_which_are_lost_and_come_back(fifty: EmulatedHosts, tmp_path: Path) -> None:
    """Each record is used once in each epoch, and all have the same weights."""
    job = start(fifty, tmp_path, HOSTS)
    await_training(job, tmp_path, lines=4)
    steps = stop(job, fifty, tmp_path)
    heard = read_heartbeats(tmp_path / "out")
    assert list(heard) == list(range(HOSTS))
    assert {each.beat.end for each in heard.values()} == {"ended"}
    job = start(fifty, tmp_path, FEWER, "--min-workers", str(FEWER - 1), "--max-restarts", "2")
    await_training(job, tmp_path, lines=1)
    kill([one(fifty, "host20", "-m hvdtrain train")])
    await_words(job, "rank 19 of 40 on host20 was killed by SIGKILL")
    await_words(job, f"{FEWER} workers train on, of which 1 joined.")
    await_training(job, tmp_path, lines=1)
    fifty.drop_packets("host30")
    await_words(job, "on host30 was lost")
    await_words(job, f"{FEWER - 1} workers train on.")
    await_training(job, tmp_path, lines=1)
    fifty.restore()
    kill(fifty.pids("host30", "sshd: "))
    await_words(job, f"{FEWER} workers train on, of which 1 joined.", times=2)
    await_training(job, tmp_path, lines=1)
    assert stop(job, fifty, tmp_path) > steps
    assert len(result_of(tmp_path / "out")["goodput"]["restarts"]) == 2


def start(hosts: EmulatedHosts, folder: Path, count: int, *flags: str) -> Spawned:
    where = ",".join(f"{name}:1" for name in hosts.names[:count])
    argv = [sys.executable, "-m", "hvdtrain", "launch", "ssh", "-H", where, *FLAGS, *flags, "--", "train", *OPTIONS]
    return hosts.spawn("host1", argv, {"OMP_NUM_THREADS": "1", **python_path(WORKERS)}, folder)


def stop(job: Spawned, hosts: EmulatedHosts, folder: Path) -> int:
    """End it in good order; returns the steps that were trained."""
    kill([one(hosts, "host1", "-m hvdtrain launch")], signal.SIGTERM)
    done = job.wait(PATIENCE_S)
    assert done.returncode == 75, done.tail()
    hosts.wait_until_quiet(PATIENCE_S)
    assert read_coverage(folder / "out").exact
    result = result_of(folder / "out")
    assert result["weights"]["equal_on_all_ranks"]
    return int(result["steps"])


def await_words(job: Spawned, words: str, times: int = 1) -> None:
    await_that(job, words, lambda: job.output.count(words) >= times)


def await_training(job: Spawned, folder: Path, lines: int) -> None:
    """Until it has written further lines of metrics, and a checkpoint."""
    out, latest = folder / "out", folder / "out" / "checkpoints" / "latest"
    before = trained_lines(out)
    await_that(job, "further lines of metrics", lambda: latest.exists() and trained_lines(out) >= before + lines)


def await_that(job: Spawned, what: str, condition: Callable[[], bool]) -> None:
    """Until it is so, while the job runs."""

    def is_so() -> bool:
        ended = job.process.poll()
        assert ended is None or condition(), f"the job has ended with exit code {ended}:\n{job.output}"
        return condition()

    wait_until(what, is_so, PATIENCE_S, lambda: job.output)
