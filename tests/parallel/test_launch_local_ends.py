"""How jobs of `hvdtrain launch local` end: by kill -9, signals, crash loops. Workers are a few lines of Python each."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from support.process_table import variables_of
from support.processes import Spawned

DEADLINE_S = 60.0
GONE_S = 10.0

LAUNCH = """
import json, os, sys
from hvdtrain.launch.job_spec import JobSpec
from hvdtrain.launch.local import run
from hvdtrain.launch.supervisor import supervisor
fields = json.loads(sys.argv[1])
program = fields.pop("program", [sys.executable, "-c"])
command = (*program, fields.pop("lines"))
environment = fields.pop("environment", os.environ)
supervisor.LINGER_SECONDS = fields.pop("lingers", supervisor.LINGER_SECONDS)
sys.exit(run(JobSpec(command=("train",), np=2, **fields), command, environment))
"""
PROLOGUE = """
import faulthandler, os, signal, subprocess, sys, time
rank = int(os.environ["HOROVOD_RANK"])
def ready():
    with open(f"ready_{rank}.new", "w") as file:  # other ranks' lines are held back until all have met
        file.write(str(os.getpid()))
    os.rename(file.name, f"ready_{rank}")
    time.sleep(300)
"""
CHILD = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'], start_new_session=True)\n"
WAIT = "ready()\n"
CRASH = "faulthandler.enable()\ndef measure(): os.kill(os.getpid(), signal.SIGSEGV)\nif rank: measure()\n"


class Job(Spawned):
    """A running launcher of two workers."""

    def __init__(self, folder: Path, lines: str, fields: dict[str, Any]) -> None:
        self._folder = folder
        argv = [sys.executable, "-c", LAUNCH, json.dumps({"lines": PROLOGUE + lines, **fields})]
        super().__init__(argv, os.environ, folder)

    def workers(self) -> list[int]:
        """Their processes, once both are ready."""
        paths = [self._folder / f"ready_{rank}" for rank in (0, 1)]
        self.await_that(lambda: all(path.exists() for path in paths), "two workers", DEADLINE_S)
        return [int(path.read_text()) for path in paths]

    def ended(self, code: int, seconds: float = GONE_S) -> str:
        """Its output, when it has ended with that code and nothing of it runs."""
        finished = self.wait(seconds)
        assert finished.returncode == code, finished.tail()
        self.require_gone(1)
        return finished.output


Start = Callable[..., Job]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as jobs:
        yield lambda lines, **fields: jobs.enter_context(Job(tmp_path, lines, fields))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_worker_ends_all_and_is_named(rank: int, start: Start) -> None:
    """The other one is stopped, which is a way not to notice anything; each has a child in a session of its own."""
    job = start(CHILD + WAIT)
    workers = job.workers()
    os.kill(workers[1 - rank], signal.SIGSTOP)
    os.kill(workers[rank], signal.SIGKILL)
    assert f"hvdtrain launch: rank {rank} of 2 was killed by SIGKILL." in job.ended(1)


def test_a_killed_launcher_leaves_nothing_behind(start: Start) -> None:
    job = start(CHILD + WAIT)
    job.workers()
    assert len(job.processes()) == 6  # launcher, its guard, two workers with a child each
    job.process.kill()
    job.require_gone(GONE_S)


def test_a_crash_loop_stops_at_the_cap(start: Start) -> None:
    said = start(CRASH, max_restarts=2, backoff=0.2).ended(1, DEADLINE_S)
    assert said.count("was killed by SIGSEGV") == 3
    assert re.findall(r"restart (\d) of 2 in ([\d.]+) s", said) == [("1", "0.2"), ("2", "0.4")]
    assert "given up after 2 of 2 restarts" in said
    assert "in measure" in said[said.rindex("Its last lines:") :]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_reaches_the_workers_and_decides_the_exit_code(
    number: signal.Signals, code: int, start: Start
) -> None:
    job = start("signal.signal(signal.SIGINT, signal.SIG_DFL)\n" + WAIT, max_restarts=5)
    job.workers()
    job.process.send_signal(number)
    said = job.ended(code)
    assert f"hvdtrain launch: stopped by {number.name}." in said
    assert "restart" not in said


def test_workers_that_ignore_a_signal_are_killed_after_the_grace(start: Start) -> None:
    job = start("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAIT, grace=1.0)
    job.workers()
    job.process.send_signal(signal.SIGTERM)
    assert "ranks 0, 1 did not leave in time and had to be killed" in job.ended(143)


SAVES = """
def save(*_): time.sleep(2); os._exit(75)
signal.signal(signal.SIGUSR1, save)
signal.signal(signal.SIGTERM, (lambda *_: None) if "late" in os.environ else save)
"""


def test_sigterm_after_the_notice_does_not_tear_a_save(start: Start) -> None:
    job = start(SAVES + WAIT, environment={**os.environ, "late": "1"})
    job.workers()
    job.process.send_signal(signal.SIGUSR1)
    time.sleep(1.1)  # the limit comes some time after the notice, so it is no echo
    job.process.send_signal(signal.SIGTERM)
    job.ended(75)


def test_a_terminal_that_closes_lets_workers_save(start: Start) -> None:
    job = start(SAVES + WAIT)
    job.workers()
    job.process.send_signal(signal.SIGHUP)
    job.ended(75)


def test_a_signal_ends_the_wait_for_a_restart(start: Start) -> None:
    job = start(CRASH, max_restarts=1, backoff=60.0)
    job.await_that(lambda: "restart 1 of 1 in 60 s" in job.output, "restart", DEADLINE_S)
    job.process.send_signal(signal.SIGTERM)
    job.ended(143)


SLOW_START = """
import horovod.torch as hvd
time.sleep(max(0, 12 - time.clock_gettime(time.CLOCK_BOOTTIME) + BEGAN) if rank else 0)
hvd.init()
ready()
"""


def test_ranks_that_meet_late_but_in_time_are_left_alone(start: Start, tmp_path: Path) -> None:
    """Later than other ranks' lines are held back, and before the start's deadline, which must not come any more."""
    program = tmp_path / "hvdtrain"  # by this name, for only what trains is expected to meet
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "$2"\n')
    program.chmod(0o755)
    began = time.clock_gettime(time.CLOCK_BOOTTIME)
    job = start(f"BEGAN = {began}\n" + SLOW_START, program=[str(program), "train"], start_timeout=25.0)
    workers = job.workers()
    time.sleep(max(0.0, began + 25 + 3 - time.clock_gettime(time.CLOCK_BOOTTIME)))  # nothing may happen meanwhile
    assert set(workers) <= set(job.processes()), job.output
    job.process.send_signal(signal.SIGTERM)
    job.ended(143)


def answers(port: int, request: bytes) -> bytes:
    """What the server says, until it closes the connection: perhaps before it has read all."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection, suppress(ConnectionError):
        connection.sendall(request)
        while data := connection.recv(4096):
            received += data
    return received


def test_strangers_at_the_rendezvous_are_refused_while_the_job_runs(start: Start) -> None:
    job = start(WAIT)
    variables = variables_of(job.workers()[1])
    address, _, token = variables["HOROVOD_GLOO_RENDEZVOUS_ADDR"].partition("/")
    port = int(address.partition(":")[2])
    path = f"/{token}:{port}/global/0".encode()
    assert answers(port, b"GET /wrong:1/global/rank_0 HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 403 ")
    assert answers(port, b"PUT /wrong:1/global/0 HTTP/1.1\r\nContent-Length: 9\r\n\r\n").startswith(b"HTTP/1.1 403 ")
    assert answers(port, b"POST " + path + b" HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    giant = b"PUT " + path + b" HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n"
    assert answers(port, giant).startswith(b"HTTP/1.1 413 ")
    assert answers(port, b"PUT " + path + b" HTTP/1.1\r\nContent-Length: -1\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert answers(port, b"\x80\x04cposix\nsystem\n\n").startswith(b"HTTP/1.1 400 ")
    assert answers(port, b"GET ") == b""  # after five seconds
    assert answers(port, b"x" * 2**20) == b""
    listening = re.findall(rf": ([0-9A-F]{{8}}):{port:04X} 00000000:0000 0A", Path("/proc/net/tcp").read_text())
    assert listening == ["0100007F"]
    for process in job.processes():
        assert token not in Path(f"/proc/{process}/cmdline").read_text(errors="replace")


DONE = """
import atexit, ctypes, threading
from concurrent.futures import ThreadPoolExecutor
from hvdtrain.exit_watch import completed
from hvdtrain.failure_record import claim_failure_file
def wait(): time.sleep(300)
def in_c():
    libc = ctypes.CDLL(None)
    libc.__cxa_atexit(libc.pause, None, None)  # after the interpreter's end
claim_failure_file()
code = completed(rank, lambda: f"rank {rank}", lambda: int(os.environ["code"]))
if rank: %s
sys.exit(code)
"""
WAYS = {  # not to end, or not as it should, after the work is done: what is said
    "threading.Thread(target=wait, name='pump').start()": "it waits for thread 'pump', in wait() at <string>:",
    "ThreadPoolExecutor(1).submit(wait)": "it waits for thread 'ThreadPoolExecutor-0_0', in wait() at <string>:",
    "atexit.register(wait)": "it waits for what is called at exit, in wait() at <string>:",
    "in_c()": "rank 1 was killed by SIGALRM after its work was done",
    "atexit.register(os.kill, os.getpid(), signal.SIGSEGV)": "rank 1 was killed by SIGSEGV after its work was done",
}


@pytest.mark.parametrize(("way", "code"), [*((way, 0) for way in WAYS), (next(iter(WAYS)), 75), (list(WAYS)[-1], 75)])
def test_a_worker_that_does_not_end_well_after_its_work_is_done(way: str, code: int, start: Start) -> None:
    """A thread, a library's clean-up: these neither keep the job for ever, nor make a failure of it."""
    environment = {**os.environ, "code": str(code), "HVDTRAIN_EXIT_TIMEOUT": "1"}
    said = start(DONE % way, environment=environment, max_restarts=1).ended(code, DEADLINE_S)
    assert WAYS[way] in said
    assert "restart" not in said


def test_people_are_told_of_workers_that_run_long_after_the_first_has_ended(start: Start) -> None:
    said = start("if rank: time.sleep(2)\n", lingers=0.5).ended(0, DEADLINE_S)
    assert re.search(r"rank 1 \(process \d+\) still runs 0.5 s after the first worker ended; it is waited for", said)
