"""Marks, the reaper, and the kernel's counter."""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hvdtrain.errors import UsageError
from hvdtrain.launch.processes.orphan_reaper import (
    JOB_TOKEN_VARIABLE,
    LOOK_SECONDS,
    kill_job,
    processes_of,
    with_job_token,
)
from hvdtrain.launch.processes.worker import Worker, WorkerExit, WorkerSpec
from hvdtrain.launch.processes.worker_group import ERR, LocalWorkerGroup, out_of_memory_kills
from hvdtrain.launch.supervisor.worker_state import OutputTail

SLEEPER = [sys.executable, "-c", "print('ready', flush=True); import time; time.sleep(600)"]
GUARDED = """
import os, subprocess, sys
from hvdtrain.launch.processes.orphan_reaper import OrphanReaper, with_job_token
token, *command = sys.argv[1:]
with OrphanReaper(token):
    tokens = {**os.environ, "HVDTRAIN_JOB": with_job_token(os.environ, token)}
    worker = subprocess.Popen(command, env=tokens, start_new_session=True)
    worker.wait()
"""


def started(token: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        SLEEPER, stdout=subprocess.PIPE, env={**os.environ, JOB_TOKEN_VARIABLE: token}, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def until(condition: Callable[[], bool], seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_all_processes_of_a_job_are_killed_and_no_others() -> None:
    mine, other = secrets.token_hex(8), secrets.token_hex(8)
    inner = with_job_token({JOB_TOKEN_VARIABLE: mine}, other)  # a job that a worker of mine started
    processes = [started(mine), started(inner), started(other)]
    try:
        assert set(processes_of(mine)) == {processes[0].pid, processes[1].pid}
        assert kill_job(mine) == []
        assert processes[0].wait(60) == processes[1].wait(60) == -signal.SIGKILL
        assert processes[2].poll() is None
    finally:
        assert kill_job(other) == []
        for process in processes:
            process.wait(60)
            assert process.stdout is not None
            process.stdout.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV])
def test_the_guard_outlives_its_launcher_and_kills(how: signal.Signals) -> None:
    token = secrets.token_hex(8)
    root = str(Path(__file__).parents[4])
    launcher = subprocess.Popen(
        [sys.executable, "-c", GUARDED, token, *SLEEPER],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": root},
        start_new_session=True,
    )
    try:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == b"ready\n"
        os.killpg(launcher.pid, how)  # the whole process group, as a shell or a scheduler would
        launcher.wait(60)
        until(lambda: not list(processes_of(token)))
        launcher.stdout.close()
    finally:
        kill_job(token)


def worker_of(*command: str, folder: str | None = None) -> Worker:
    return Worker(WorkerSpec(0, command, dict(os.environ)), folder)


def test_a_worker_that_cannot_start_is_bad_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be started: No such file"):
        worker_of(str(tmp_path / "none"))
    with pytest.raises(UsageError, match="working directory .*/none is not a folder"):
        worker_of(sys.executable, folder=str(tmp_path / "none"))


def test_how_a_worker_ended() -> None:
    for code, command in ((3, "raise SystemExit(3)"), (-9, "import os; os.kill(os.getpid(), 9)")):
        worker = worker_of(sys.executable, "-c", command)
        end = worker.reap()
        worker.close()
        assert (end.code, end.by_us, end.failed) == (code, False, True)
    worker = worker_of(sys.executable, "-c", "import time; time.sleep(600)")
    worker.kill()
    end = worker.reap()
    worker.close()
    assert (end.code, end.by_us, end.failed) == (-9, True, False)


LEAVES_A_RECORD = """
import sys
from hvdtrain.failure_record import write_failure
write_failure("error", 0, "its own words", 3)
sys.exit(3)
"""


def test_a_record_comes_to_the_launcher_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher that is killed can leave no file behind."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[4]))
    made: list[list[Path]] = []
    ends: list[WorkerExit] = []

    class Events:
        def started(self, _rank: int, _process: int) -> None:
            made.append(list(tmp_path.iterdir()))

        def wrote(self, _rank: int, _stream: int, _data: bytes) -> None: ...

        def ended(self, _rank: int, end: WorkerExit) -> None:
            ends.append(end)

    group = LocalWorkerGroup([WorkerSpec(0, (sys.executable, "-c", LEAVES_A_RECORD), dict(os.environ))])
    with selectors.DefaultSelector() as selector:
        group.watch(selector, Events())
        while not ends:
            for key, _ in selector.select():
                key.data()
    group.close()
    assert made == [[]]
    assert ends[0].code == 3
    assert ends[0].failure is not None
    assert ends[0].failure.cause == "its own words"


def test_the_tail_keeps_what_was_seen_last() -> None:
    tail = OutputTail()
    for data in (b"one\ntw", b"o\n 10%\r 20%\r", b" 30%\nhalf"):
        tail.add(ERR, data)
    assert tail.text() == ["one", "two", " 30%", "half"]
    tail.add(ERR, b"\n" + b"x\n" * 1000 + b"y" * 100_000)
    assert len(tail.text()) == 61
    assert sum(map(len, tail.text())) < 10_000


def test_the_counter_of_every_kind_of_control_group(tmp_path: Path) -> None:
    assert out_of_memory_kills(tmp_path) == 0
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/vmstat").write_text("pgfault 7\noom_kill 3\n")
    assert out_of_memory_kills(tmp_path) == 3
    (tmp_path / "proc/self/cgroup").write_text("4:cpu,memory:/job/7\n0::/slice\n")
    old = tmp_path / "sys/fs/cgroup/cpu,memory/job/7"
    old.mkdir(parents=True)
    (old / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    assert out_of_memory_kills(tmp_path) == 5
    new = tmp_path / "sys/fs/cgroup/slice"
    new.mkdir(parents=True)
    (new / "memory.events").write_text("low 0\noom 9\noom_kill 8\n")
    assert out_of_memory_kills(tmp_path) == 8


ORPHANS = """
import os, subprocess, sys
from hvdtrain.launch.processes.orphan_reaper import OrphanReaper
from hvdtrain.launch.processes.worker import WorkerSpec, Worker
token, ending = sys.argv[1:]
stranger = subprocess.Popen(["sleep", "600.5"])
lines = f"(env -i setsid sleep 600.1 & env -i sleep 600.2 & exit 0) & env -i setsid sleep 600.3 & {ending}"
with OrphanReaper(token, adopts=True) as reaper:
    worker = Worker(WorkerSpec(0, ["sh", "-c", lines], {**os.environ, "HVDTRAIN_JOB": token}))
    print(stranger.pid, flush=True)
    if sys.stdin.readline():
        print(reaper.sweep(), stranger.poll(), flush=True)
stranger.kill()
"""


def sleepers() -> set[str]:
    """Which of the sleeps above run."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0] == b"sleep" and words[1].startswith(b"600."):
            found.add(words[1].decode())
    return found


@pytest.mark.parametrize("ending", ["wait", "exit 0"])
@pytest.mark.parametrize("killed", [False, True])
def test_descendants_without_the_mark_are_found(ending: str, killed: bool) -> None:
    """They have cleared their environment; some have a session of their own, some have lost their parents."""
    launcher = subprocess.Popen(
        [sys.executable, "-c", ORPHANS, secrets.token_hex(8), ending],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])},
        start_new_session=True,
    )
    assert launcher.stdin is not None
    assert launcher.stdout is not None
    stranger = int(launcher.stdout.readline())
    mine = {"600.1", "600.2", "600.3"}
    until(lambda: sleepers() >= mine)
    if killed:
        time.sleep(2 * LOOK_SECONDS + 0.5)  # the reaper looks from time to time; what is younger than that may stay
        launcher.kill()
        launcher.wait(60)
        until(lambda: not sleepers() & mine)
        os.kill(stranger, signal.SIGKILL)  # it is none of the job
    else:
        launcher.stdin.write(b"sweep\n")
        launcher.stdin.flush()
        assert launcher.stdout.readline() == b"[] None\n"
        assert not sleepers() & mine
    launcher.stdin.close()
    launcher.stdout.close()
    launcher.wait(60)


def test_a_further_worker_that_cannot_be_started_has_ended_and_the_others_run() -> None:
    noted: dict[int, WorkerExit] = {}

    class Events:
        def started(self, rank: int, process: int) -> None:
            assert (rank, process > 0) == (0, True)

        def wrote(self, rank: int, stream: int, data: bytes) -> None:
            assert (rank, stream) == (1, ERR)
            assert b"cannot be started" in data

        def told(self, rank: int, message: object) -> None:
            raise AssertionError(rank, message)

        def ended(self, rank: int, end: WorkerExit) -> None:
            noted[rank] = end

    group = LocalWorkerGroup([WorkerSpec(0, ["sleep", "300"], dict(os.environ))])
    with selectors.DefaultSelector() as selector:
        group.watch(selector, Events())
        group.add(WorkerSpec(1, ["/no/such/program"], {}))
        assert noted == {1: WorkerExit(2)}
        group.kill()
        while 0 not in noted:
            for key, _ in selector.select(10):
                key.data()
        group.close()
    assert noted[0].by_us


LEAVES_A_CHILD = """
import os, subprocess, sys
child = subprocess.Popen(["sleep", "600"], start_new_session=True, pass_fds=[1])
print(child.pid, flush=True)
sys.stdin = os.read(os.open(sys.argv[1], os.O_RDONLY), 1)  # until somebody writes
"""


class Noted:
    """`WorkerEvents` that keep what comes."""

    def __init__(self) -> None:
        self.said: dict[int, bytes] = {}
        self.ends: dict[int, WorkerExit] = {}
        self.told_last: object = None

    def started(self, _rank: int, _process: int) -> None:
        pass

    def told(self, _rank: int, message: object) -> None:
        self.told_last = message

    def wrote(self, rank: int, _stream: int, data: bytes) -> None:
        self.said[rank] = self.said.get(rank, b"") + data

    def ended(self, rank: int, end: WorkerExit) -> None:
        self.ends[rank] = end


def test_last_words_and_the_end_that_are_seen_together_are_told_in_any_order() -> None:
    group, events = LocalWorkerGroup([WorkerSpec(0, ["sh", "-c", "echo out; echo err >&2"], dict(os.environ))]), Noted()
    with selectors.DefaultSelector() as selector:
        group.watch(selector, events)
        seen: list[selectors.SelectorKey] = []

        def all_there() -> bool:
            seen[:] = [key for key, _ in selector.select(0.02)]
            return len(seen) == 3  # the end of the process, and its two streams

        until(all_there)
        for key in sorted(seen, key=lambda key: not isinstance(key.fileobj, int)):  # the end first
            key.data()
    assert events.ends[0] == WorkerExit(0)
    assert sorted(events.said[0].split()) == [b"err", b"out"]
    group.close()


def test_a_worker_that_cannot_leave_its_world_says_so() -> None:
    lines = "from hvdtrain.world_channel import claim_world_channel; claim_world_channel().tell_fixed()"
    events = Noted()
    variables = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    group = LocalWorkerGroup([WorkerSpec(0, [sys.executable, "-c", lines], variables, is_elastic=True)])
    with selectors.DefaultSelector() as selector:
        group.watch(selector, events)

        def told() -> bool:
            for key, _ in selector.select(0.02):
                key.data()
            return events.told_last is not None and 0 in events.ends

        until(told)
    group.close()
    assert events.told_last == {"fixed": True}


def test_a_lost_worker_of_an_elastic_job_leaves_no_child_and_no_open_file(tmp_path: Path) -> None:
    """The others, whose children run on, are of the same job."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    token, events = secrets.token_hex(8), Noted()
    command = [sys.executable, "-c", LEAVES_A_CHILD, str(pipe)]
    group = LocalWorkerGroup([], None)
    with selectors.DefaultSelector() as selector:
        group.watch(selector, events)

        def until_seen(condition: Callable[[], bool]) -> None:
            def looked() -> bool:
                for key, _ in selector.select(0.02):
                    key.data()
                return condition()

            until(looked)

        def add(rank: int) -> int:
            variables = {**os.environ, JOB_TOKEN_VARIABLE: token}
            group.add(WorkerSpec(rank, command, variables, is_elastic=True))
            until_seen(lambda: b"\n" in events.said.get(rank, b""))
            return int(events.said[rank])

        first = add(0)
        before = len(os.listdir("/proc/self/fd"))
        second = add(1)
        group.kill(1)
        until_seen(lambda: 1 in events.ends)
        assert len(os.listdir("/proc/self/fd")) == before
        running = set(processes_of(token))
        assert first in running
        assert second not in running
        group.kill(0)
        until_seen(lambda: 0 in events.ends)
    assert kill_job(token) == []
    group.close()
