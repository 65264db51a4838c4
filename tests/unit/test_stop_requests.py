"""Signals that ask a process to stop: noted, told apart from echoes, and no longer taken when training is over."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hvdtrain.failure_record import FILE_VARIABLE, FailureFile
from hvdtrain.stop_requests import ECHO_SECONDS, REQUESTS, StopSignals

DEADLINE_S = 60.0
STUCK = """
import ctypes
from hvdtrain.failure_record import write_failure
from hvdtrain.stop_requests import StopSignals
mutex = ctypes.create_string_buffer(64)
with StopSignals("rank 3", answers=True, at_second=lambda cause, code: write_failure("signal", 3, cause, code)):
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
    print("ready", flush=True)
    ctypes.CDLL(None).pthread_mutex_lock(mutex)  # waits for itself; no signal interrupts it, and Python's lock is free
"""


class Stuck:
    """A process whose main thread is in a C function for good, as one that waits for another rank is."""

    def __init__(self) -> None:
        self.record = FailureFile()
        self.process = subprocess.Popen(
            [sys.executable, "-c", STUCK],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, FILE_VARIABLE: self.record.place},
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def __enter__(self) -> Stuck:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=DEADLINE_S)
        self.record.close()

    def send(self, *numbers: signal.Signals) -> None:
        for number in numbers:
            self.process.send_signal(number)
            self._await_taken()  # two of one number that wait at the same time are one

    def _await_taken(self) -> None:
        status, end = Path(f"/proc/{self.process.pid}/status"), time.monotonic() + DEADLINE_S
        while any(int(mask, 16) for mask in re.findall(r"^(?:Sig|Shd)Pnd:\s*(\w+)", status.read_text(), re.MULTILINE)):
            assert time.monotonic() < end
            time.sleep(0.002)

    def goes_on(self) -> bool:
        try:
            self.process.wait(ECHO_SECONDS / 4)
        except subprocess.TimeoutExpired:
            return True
        return False


def await_echo_over() -> None:
    time.sleep(ECHO_SECONDS + 0.2)  # the very thing that is tested: what comes later than this is no echo


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_the_second_request_ends_even_a_process_that_is_stuck(second: signal.Signals) -> None:
    with Stuck() as stuck:
        stuck.send(signal.SIGTERM, signal.SIGTERM, signal.SIGINT)  # a terminal, a launcher that passes it on
        assert stuck.goes_on()
        await_echo_over()
        stuck.send(second)
        _, errors = stuck.process.communicate(timeout=DEADLINE_S)
        assert stuck.process.returncode == 128 + second
        assert errors.strip() == f"rank 3: {second.name} came again; leaving at once, older checkpoints are intact."
        record = stuck.record.read()
        assert record is not None
        assert (record.kind, record.cause, record.exit_code) == ("signal", f"{second.name} came again", 128 + second)


def test_sigterm_after_the_notice_of_slurm_is_a_first_one() -> None:
    with Stuck() as stuck:
        stuck.send(signal.SIGUSR1)
        await_echo_over()
        stuck.send(signal.SIGUSR1, signal.SIGTERM)
        assert stuck.goes_on()
        await_echo_over()
        stuck.send(signal.SIGUSR1)
        assert stuck.goes_on()
        stuck.send(signal.SIGTERM)
        assert stuck.process.wait(DEADLINE_S) == 143


def test_ctrl_c_is_answered() -> None:
    with Stuck() as stuck:
        stuck.send(signal.SIGINT)
        assert stuck.process.stderr is not None
        lines = [stuck.process.stderr.readline() for _ in range(2)]
        assert "rank 3: interrupted; saving a checkpoint before it ends. Once more ends it at once." in lines[1]


def await_request(signals: StopSignals) -> str | None:
    deadline = time.monotonic() + DEADLINE_S
    while signals.asked() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    return signals.asked()


@pytest.mark.parametrize("number", REQUESTS)
def test_the_first_request_is_noted_and_handlers_are_put_back(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in REQUESTS]
    threads = threading.active_count()
    with StopSignals("this", answers=False) as signals:
        assert signals.asked() is None
        signal.raise_signal(number)
        assert await_request(signals) == number.name
    assert [signal.getsignal(each) for each in REQUESTS] == before
    assert signal.set_wakeup_fd(-1) == -1
    assert threading.active_count() == threads


def test_what_is_ignored_stays_ignored() -> None:
    """As SIGINT is in a job that a script's shell runs in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopSignals("this", answers=False) as signals:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            assert await_request(signals) == "SIGTERM"
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_outside_of_the_main_thread_nothing_is_taken() -> None:
    seen = []

    def work() -> None:
        with StopSignals("this", answers=False) as signals:
            seen.extend([signal.getsignal(signal.SIGTERM), signals.asked()])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(DEADLINE_S)
    assert seen == [signal.getsignal(signal.SIGTERM), None]


def ended(script: str) -> subprocess.CompletedProcess[str]:
    """A new interpreter that has run the script."""
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


FORKING = """
import os, signal, time
from hvdtrain.stop_requests import StopSignals
with StopSignals("this", answers=False) as signals:
    child = os.fork()
    if child == 0:
        signal.raise_signal(signal.SIGTERM)
        os._exit(99)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status))
    os.kill(os.getpid(), signal.SIGUSR1)
    while signals.asked() is None:
        time.sleep(0.005)
    print(signals.asked())  # the first one: the child's, if that had come here
"""


def test_a_forked_child_ends_by_its_own_signals() -> None:
    """Pools of user code fork, and end their workers by SIGTERM."""
    done = ended(FORKING)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(-signal.SIGTERM), "SIGUSR1"]


FAILING = """
import os, signal, sys
from hvdtrain.stop_requests import StopSignals
try:
    with StopSignals("rank 0", answers=True, ends_process=True):
        raise ConnectionError("another rank has ended")
except ConnectionError as error:
    signal.raise_signal(signal.SIGTERM)
    print(error)
    sys.exit(1)
"""


def test_a_request_does_not_cut_off_what_a_worker_says_at_its_end() -> None:
    """horovodrun and mpirun send SIGTERM to those that a lost worker leaves behind."""
    done = ended(FAILING)
    assert (done.returncode, done.stdout) == (1, "another rank has ended\n"), done.stderr
