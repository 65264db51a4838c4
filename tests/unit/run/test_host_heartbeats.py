"""The heartbeats of a host are one file, whichever of its workers is killed, frozen or has ended."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hvdtrain.history.heartbeats import Heard, Heartbeat, heartbeat_file, host_file, read_heartbeats
from hvdtrain.run.watch.host_heartbeats import HostHeartbeats
from hvdtrain.run.watch.local_folder import LocalFolder

DEADLINE = 60.0
_WORKER = """\
import os, sys, time
from pathlib import Path
from hvdtrain.activity import Activity
from hvdtrain.history.heartbeats import Heartbeat
from hvdtrain.run.watch.heartbeat import HeartbeatWriter
from hvdtrain.run.watch.host_heartbeats import HostHeartbeats
run, local, rank, interval = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
first = Heartbeat(rank=rank, size=64, start="a", host="node", pid=os.getpid(), time=0.0)
by_host = HostHeartbeats(run, "node", rank == 0, local)
with HeartbeatWriter(run, first, interval, Activity(), by_host):
    if sys.stdin.readline().strip() == "fail":
        raise ValueError("bad record")
"""


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


class Host:
    """Workers that are processes of their own, and do nothing but write heartbeats."""

    def __init__(self, folder: Path) -> None:
        self.run, self.local = folder / "run", folder / "local"
        self.run.mkdir()
        self.local.mkdir()
        self.workers: dict[int, subprocess.Popen[str]] = {}

    def start(self, *ranks: int, interval: float = 0.05) -> None:
        for rank in ranks:
            argv = [sys.executable, "-c", _WORKER, str(self.run), str(self.local), str(rank), str(interval)]
            self.workers[rank] = subprocess.Popen(argv, stdin=subprocess.PIPE, text=True)

    def end(self, rank: int, word: str = "end") -> None:
        worker = self.workers[rank]
        worker.communicate(f"{word}\n", timeout=DEADLINE)

    def files(self) -> list[str]:
        return sorted(path.name for path in (self.run / "heartbeats").glob("*.json"))

    def heard(self) -> dict[int, Heard]:
        return read_heartbeats(self.run)

    def await_beats(self, *ranks: int) -> None:
        """Of each of these ranks, until newer ones than now can be read."""
        before = self.heard()
        at = {rank: before[rank].beat.beat if rank in before else -1 for rank in ranks}

        def came() -> bool:
            heard = self.heard()
            return all(rank in heard and heard[rank].beat.beat > at[rank] for rank in ranks)

        wait_for(came)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    for worker in host.workers.values():
        worker.kill()
        worker.communicate(timeout=DEADLINE)


def test_another_worker_takes_over_from_one_that_is_killed_or_frozen(host: Host) -> None:
    host.start(0)
    host.await_beats(0)  # the others would begin to write if it came long after them
    host.start(1, 2)
    host.await_beats(0, 1, 2)
    host.await_beats(0, 1, 2)
    assert host.files() == ["host_of_rank_0.json"]
    host.workers[0].kill()
    host.workers[0].wait()
    host.await_beats(1, 2)
    before = host.heard()[0].age
    host.await_beats(1, 2)
    assert host.files() == ["host_of_rank_0.json", "host_of_rank_1.json"]
    assert host.heard()[0].age > before  # nobody takes it for alive because its host writes
    host.workers[1].send_signal(signal.SIGSTOP)
    host.await_beats(2)
    host.await_beats(2)
    assert "host_of_rank_2.json" in host.files()
    host.workers[1].send_signal(signal.SIGCONT)
    host.await_beats(1, 2)
    host.end(2)
    wait_for(lambda: host.heard()[2].beat.end == "ended")
    host.end(1)
    assert [host.heard()[rank].beat.end for rank in range(3)] == ["", "ended", "ended"]


def test_an_error_is_told_although_the_one_that_writes_is_killed(host: Host) -> None:
    host.start(0, 1, 2, interval=1000.0)  # which is after the end of this test
    wait_for(lambda: host.files() == ["host_of_rank_0.json"])
    host.end(2, "fail")
    for rank in (0, 1):
        host.workers[rank].kill()
    beat = host.heard()[2].beat
    assert (beat.end, beat.error) == ("failed", "ValueError: bad record")


class Ranks:
    """Ranks of a host, in this process and by a clock of this test."""

    def __init__(self, folder: Path, *ranks: int) -> None:
        self.run, self.local, self.now = folder / "run", folder / "local", 100.0
        for path in (self.run, self.local):
            path.mkdir()
        self.ranks = {rank: HostHeartbeats(self.run, "node", rank == 0, self.local, lambda: self.now) for rank in ranks}
        self.numbers = dict.fromkeys(ranks, 0)

    def write(self, rank: int, end: str = "", *, at_once: bool = False) -> None:
        self.numbers[rank] += 1
        facts = {"size": 64, "start": "a", "host": "node", "pid": os.getpid(), "beat": self.numbers[rank], "end": end}
        self.ranks[rank].write(Heartbeat(rank=rank, time=time.time(), **facts), at_once)  # type: ignore[arg-type]

    def files(self) -> list[str]:
        return sorted(path.name for path in self.run.rglob("*.json"))


def test_a_moment_passes_before_others_than_the_first_write(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 0, 1)
    ranks.write(1)
    assert ranks.files() == []
    ranks.write(0)
    assert ranks.files() == ["host_of_rank_0.json"]
    assert sorted(read_heartbeats(ranks.run)) == [0, 1]
    ranks.now += 5.0
    ranks.write(1)
    assert ranks.files() == ["host_of_rank_0.json"]  # rank 0 has written since rank 1 began
    ranks.now += 5.0
    ranks.write(1)
    assert ranks.files() == ["host_of_rank_0.json", "host_of_rank_1.json"]


def test_the_last_one_tells_the_end_of_all_and_leaves_nothing_on_the_host(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 0, 1, 2)
    for rank in range(3):
        ranks.write(rank)
    assert list(ranks.local.rglob("*.json"))
    for rank in (1, 0, 2):
        ranks.write(rank, "ended")
    assert [heard.beat.end for heard in read_heartbeats(ranks.run).values()] == ["ended"] * 3
    assert not list(ranks.local.rglob("*.json"))


def test_ranks_of_an_earlier_start_are_not_waited_for(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 0, 1)
    old = Heartbeat(rank=0, size=64, start="before", host="node", pid=os.getpid(), time=time.time())
    ranks.ranks[0].write(old)
    host_file(ranks.run, 0).unlink()
    ranks.now += 5.0
    ranks.write(1)
    assert ranks.files() == ["host_of_rank_1.json"]
    assert sorted(read_heartbeats(ranks.run)) == [1]


def test_a_folder_of_somebody_else_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("hvdtrain"), "propagate", True)
    ranks = Ranks(tmp_path, 0)
    (tmp_path / "theirs").mkdir()
    (ranks.local / f"hvdtrain-heartbeats-{os.getuid()}").symlink_to(tmp_path / "theirs")
    with caplog.at_level(logging.WARNING, "hvdtrain.run"):
        ranks.write(0)
        ranks.write(0)
    assert [path.name for path in (ranks.run / "heartbeats").iterdir()] == [heartbeat_file(ranks.run, 0).name]
    assert read_heartbeats(ranks.run)[0].beat.beat == 2
    assert not list((tmp_path / "theirs").iterdir())
    (record,) = caplog.records
    assert "belongs to somebody else" in record.getMessage()


def test_nobody_waits_for_a_worker_that_is_gone(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(DEADLINE)
    ranks = Ranks(tmp_path, 0, 1)
    ranks.ranks[0].write(Heartbeat(rank=0, size=64, start="a", host="node", pid=gone.pid, time=time.time()))
    ranks.write(1, "failed")
    assert [heard.beat.end for heard in read_heartbeats(ranks.run).values()] == ["", "failed"]
    assert not list(ranks.local.rglob("*.json"))


def test_what_killed_runs_have_left_on_the_local_disk_is_removed_after_a_day(tmp_path: Path) -> None:
    killed, going_on, new = (LocalFolder(tmp_path / name, "node", tmp_path) for name in ("killed", "going_on", "new"))
    for folder in (killed, going_on):
        folder.make()
        (folder.path / "heartbeats").mkdir()
    long_ago = (killed.path / "heartbeats").stat().st_mtime - 25 * 3600
    for path in (killed.path / "heartbeats", killed.path, going_on.path):
        os.utime(path, (long_ago, long_ago))
    new.make()
    assert [each.path.exists() for each in (killed, going_on, new)] == [False, True, True]
