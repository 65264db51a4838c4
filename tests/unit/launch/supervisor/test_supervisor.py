"""Whose fault it was, with which exit code; and what reaches the terminal."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hvdtrain import stop_requests
from hvdtrain.failure_record import STALL, FailureRecord
from hvdtrain.launch.processes.worker import WorkerExit
from hvdtrain.launch.processes.worker_group import ERR, OUT, WorkerEvents
from hvdtrain.launch.supervisor import supervisor
from hvdtrain.launch.supervisor.console import Console
from hvdtrain.launch.supervisor.diagnosis import diagnose, last_words, words_of_others
from hvdtrain.launch.supervisor.signals import SignalAction, SignalInbox, SignalPolicy, for_workers
from hvdtrain.launch.supervisor.supervisor import Supervisor
from hvdtrain.launch.supervisor.worker_state import WorkerState
from hvdtrain.stop_requests import REQUESTS

INT, TERM, USR1, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP

LOST = FailureRecord("lost_rank", 0, "a", "A collective operation was aborted.", 1)
EXPLAINED = FailureRecord("stall", 0, "a", f"{STALL} 45 s. Rank 1 is in data loading.", 1)
TERM_AGAIN = FailureRecord("signal", 1, "a", "SIGTERM came again", 143)


def crashed(cause: str, detail: str = "") -> FailureRecord:
    return FailureRecord("exception", 0, "a", cause, 1, detail)


def workers(
    *codes: int | tuple[int, bytes | FailureRecord], order: list[int] | None = None, killed: tuple[int, ...] = ()
) -> list[WorkerState]:
    """Rank N ended with codes[N] (and wrote the bytes or left the record beside it), as number order[N]."""
    made = []
    for rank, given in enumerate(codes):
        code, left = given if isinstance(given, tuple) else (given, b"")
        number = (order or list(range(len(codes))))[rank]
        text, failure = (left, None) if isinstance(left, bytes) else (b"", left)
        made.append(WorkerState(rank, end=WorkerExit(code, by_us=rank in killed, failure=failure), order=number))
        made[-1].tail.add(ERR, text)
    return made


def test_what_a_watchdog_has_explained_is_the_cause_of_the_restart() -> None:
    cause = diagnose(workers((1, EXPLAINED), (1, EXPLAINED)), None).cause
    assert cause.startswith("Training has not gone on for 45 s. Rank 1 is in data loading; ranks 0, 1 stopped")


@pytest.mark.parametrize(
    ("ended", "code", "root_cause_rank", "restart"),
    [
        (workers(0, 0), 0, None, False),
        (workers(1, 1, order=[1, 0]), 1, 1, True),
        (workers((1, LOST), 1), 1, 1, True),
        (workers((1, b"horovod.common.exceptions.HorovodInternalError: x\n"), 1), 1, 1, True),  # a foreign program
        (
            workers((-9, b"HorovodInternalError: x\n"), (1, LOST), order=[1, 0]),
            1,
            0,
            True,
        ),  # a kill is a cause
        (workers((1, b"Another rank has ended or stalled\n"), 1), 1, 0, True),  # words alone are no record
        (workers((1, crashed("x")), (1, crashed("x")), order=[1, 0]), 1, 0, True),  # rank 0 speaks for all
        (workers((1, crashed("x")), (1, crashed("y")), order=[1, 0]), 1, 1, True),
        (workers((1, LOST), (1, LOST)), 1, 0, True),
        (workers(0, -9), 1, 1, True),
        (workers(-9, 5, killed=(0,), order=[1, 0]), 5, 1, True),
        (workers(2, 2, order=[1, 0]), 2, 0, False),  # rank 0 speaks for all
        (workers(-9, 2, killed=(0,), order=[1, 0]), 2, 1, False),
        (workers(75, 75), 75, 0, False),
        (workers(130, 1), 130, 0, False),
        (workers((1, LOST), (143, TERM_AGAIN)), 143, 1, False),
    ],
)
def test_who_is_to_blame(ended: list[WorkerState], code: int, root_cause_rank: int | None, restart: bool) -> None:
    outcome = diagnose(ended, None)
    assert (outcome.code, outcome.root_cause_rank, outcome.may_restart) == (code, root_cause_rank, restart)
    assert bool(outcome.message) is (code not in (0, 75))


@pytest.mark.parametrize(
    ("codes", "number", "code"),
    [
        ((0, 0), signal.SIGTERM, 0),
        ((75, 75), signal.SIGUSR1, 75),
        ((75, 0), signal.SIGTERM, 75),
        ((75, 1), signal.SIGTERM, 143),
        ((130, 1), signal.SIGINT, 130),
        ((-15, -15), signal.SIGTERM, 143),
        ((-9, -9), signal.SIGUSR1, 138),
    ],
)
def test_after_a_signal(codes: tuple[int, ...], number: signal.Signals, code: int) -> None:
    outcome = diagnose(workers(*codes), number)
    assert (outcome.code, outcome.may_restart) == (code, False)


def test_a_rank_that_was_killed_is_said_to_be_late_or_that_the_user_has_asked_twice() -> None:
    ended = workers(-9, 75, -9, killed=(0, 2))
    assert diagnose(ended, TERM).message == (
        "hvdtrain launch: stopped by SIGTERM; ranks 0, 2 did not leave in time and had to be killed."
    )
    assert diagnose(ended, TERM, hurried_by=INT).message == (
        "hvdtrain launch: stopped by SIGTERM; SIGINT came as a second request, so ranks 0, 2 were killed at once."
    )
    assert diagnose(workers(75, 75), TERM, hurried_by=INT).message == ""


class Deaf:
    """One worker that ignores the first signal; the second one comes meanwhile."""

    def watch(self, _selector: object, events: WorkerEvents) -> None:
        self._events = events

    def send(self, number: signal.Signals) -> None:
        signal.raise_signal(number)

    def kill(self) -> None:
        self._events.ended(0, WorkerExit(-signal.SIGKILL, by_us=True))


def test_a_second_signal_is_told_apart_from_patience_that_ended(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stop_requests, "ECHO_SECONDS", -1.0)
    with SignalInbox() as inbox:
        signal.raise_signal(signal.SIGTERM)
        Supervisor([Deaf()], [WorkerState(0)], Console(inbox), inbox, None, 3600.0, None).run()
    assert "SIGTERM came as a second request, so rank 0 was killed at once" in capfd.readouterr().err


class Early:
    """Two workers that start: the first one takes the signal and waits for the second one, which it has ended."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()

    def watch(self, selector: selectors.BaseSelector, events: WorkerEvents) -> None:
        self._events = events
        selector.register(self._reader, selectors.EVENT_READ, self._on_end)

    def _on_end(self) -> None:
        events, number = self._events, self._reader.recv(1)[0]
        events.ended(1, WorkerExit(-number))

    def send(self, number: signal.Signals) -> None:
        self._writer.send(bytes([number]))

    def kill(self) -> None:
        self._reader.close()
        self._writer.close()
        self._events.ended(0, WorkerExit(-signal.SIGKILL, by_us=True))


def test_workers_that_are_asked_to_stop_before_they_are_connected_have_nothing_to_save(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are not waited for longer than after any other failure."""
    monkeypatch.setattr(supervisor, "LAST_WORDS_SECONDS", 0.01)
    with SignalInbox() as inbox:
        signal.raise_signal(signal.SIGTERM)
        console, states = Console(inbox), [WorkerState(0), WorkerState(1)]
        assert Supervisor([Early()], states, console, inbox, 300.0, 3600.0, None).run().code == 143


def message(end: WorkerExit) -> str:
    return diagnose([WorkerState(0, end=WorkerExit(0)), WorkerState(1, "b", end=end)], None).message


def test_out_of_memory_is_suspected_of_sigkill_only() -> None:
    assert "was killed by SIGKILL; out of memory?" in message(WorkerExit(-9, out_of_memory=True))
    assert "out of memory" not in message(WorkerExit(-9))
    assert "out of memory" not in message(WorkerExit(-11, out_of_memory=True))
    assert "signal 62" in message(WorkerExit(-62))


def test_the_host_is_named_where_there_are_several() -> None:
    assert message(WorkerExit(-9)).startswith("hvdtrain launch: rank 1 of 2 on b was killed by SIGKILL. ")
    assert message(WorkerExit(1, lost="nothing was heard")).startswith(
        "hvdtrain launch: rank 1 of 2 on b was lost: nothing was heard. "
    )


def test_a_rank_that_a_signal_has_ended_says_so() -> None:
    told = diagnose(workers((1, LOST), (143, TERM_AGAIN)), None).message
    assert "rank 1 of 2 failed with exit code 143 because of a signal: SIGTERM came again." in told


def test_a_lost_host_is_to_blame_although_others_fail_first() -> None:
    others = workers((1, LOST), (1, LOST))
    outcome = diagnose([*others, WorkerState(2, "b", end=WorkerExit(1, lost="gone"), order=2)], None)
    assert (outcome.code, outcome.root_cause_rank, outcome.may_restart) == (1, 2, True)


def test_the_last_words_begin_before_the_last_traceback() -> None:
    lines = ["a", "Traceback (most recent call last):", "  old", "", "rank 1 failed:"]
    lines += ["Traceback (most recent call last):", "  new", "Error: why"]
    assert last_words(lines) == lines[4:]
    assert last_words([str(number) for number in range(50)]) == [str(number) for number in range(30, 50)]


@pytest.fixture
def console(capfdbinary: pytest.CaptureFixture[bytes]) -> Console:
    del capfdbinary
    shown = Console()
    shown.holding = False
    return shown


def test_lines_stay_whole_and_bars_stay_bars(console: Console, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    console.take(1, ERR, b"he")
    console.take(0, ERR, b"10%\r")
    console.take(1, ERR, b"llo\nrest")
    console.take(0, ERR, b"20%\n")
    console.take(1, OUT, b"1%\r2%\n")
    console.finish(1)
    console.say("done")
    captured = capfdbinary.readouterr()
    assert captured.err == b"10%\r\n[1] hello\n20%\n[1] rest\ndone\n"
    assert captured.out == b"[1] 2%\n"


def test_a_line_of_rank_0_that_comes_in_pieces_stays_whole(
    console: Console, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    for data in (b"epoch ", b"1", b"\nep", b"och 2"):
        console.take(0, OUT, data)
        console.take(1, OUT, b"x\n")
    console.finish(0)
    console.say("done")
    captured = capfdbinary.readouterr()
    assert captured.out == b"[1] x\n[1] x\nepoch 1\n[1] x\n[1] x\nepoch 2"
    assert captured.err == b"\ndone\n"


def test_what_is_held_is_released_or_dropped(console: Console, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    console.holding = True
    for rank in (0, 1, 2):
        console.take(rank, ERR, b"bad option\n")
    assert capfdbinary.readouterr().err == b"bad option\n"
    console.release(2)
    console.drop_held(console.held)
    console.release_all()
    console.take(1, ERR, b"later\n")
    assert capfdbinary.readouterr().err == b"[2] bad option\n[1] later\n"


def test_holding_has_an_end(console: Console, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    console.holding = True
    for _ in range(100):
        console.take(1, OUT, b"x" * 1000 + b"\n")
    assert len(capfdbinary.readouterr().out) > 30_000


FOREIGN = b"HorovodInternalError: x\n"
STALL = b"""[W stall_inspector.cc:107] One or more tensors were submitted to be reduced, ...
Missing ranks:
1: [allreduce.a]
3: [allreduce.a, allreduce.b ...]
"""


def test_who_stalls_is_blamed_by_the_words_of_those_that_waited() -> None:
    outcome = diagnose(workers((1, STALL + FOREIGN), -9, (1, LOST), -9, killed=(1, 3)), None, all_connected=True)
    assert outcome.root_cause_rank == 1
    assert "ranks 1, 3 of 4 took no part in a collective operation" in outcome.message
    assert "ranks 0, 2 stopped only because of that" in outcome.message


def test_an_unfinished_line_of_the_other_stream_hides_nothing() -> None:
    """A task that prints dots on standard output while Horovod warns on standard error."""
    ended = workers((1, b""), -9, (1, LOST), -9, killed=(1, 3))
    *whole, last = STALL.splitlines(keepends=True)
    for line in (*whole, last + FOREIGN):
        ended[0].tail.add(OUT, b"...")
        ended[0].tail.add(ERR, line)
    assert ended[0].tail.text() == [*(STALL + FOREIGN).decode().splitlines(), "..." * 4]
    assert "ranks 1, 3 of 4 took no part" in diagnose(ended, None, all_connected=True).message


def test_who_leaves_early_is_named() -> None:
    outcome = diagnose(workers((1, LOST), 0, order=[1, 0]), None, all_connected=True)
    assert outcome.root_cause_rank == 1
    assert "rank 1 of 2 left with exit code 0 while others still needed it; rank 0 stopped" in outcome.message
    assert "HINT: give all ranks the same number of batches" in outcome.message


def test_ranks_that_lost_another_are_not_accused() -> None:
    outcome = diagnose(workers((1, LOST), (1, LOST)), None, all_connected=True)
    assert "failed with" not in outcome.message
    assert "ranks 0, 1 stopped only because of that" in outcome.message


def test_a_rank_that_answers_nobody_is_named() -> None:
    """A script's process that SIGSTOP has frozen: there is no watchdog that says so."""
    outcome = diagnose(workers((1, LOST), -9, (1, LOST), order=[0, 2, 1], killed=(1,)), None, all_connected=True)
    assert (outcome.root_cause_rank, outcome.may_restart) == (1, True)
    assert "rank 1 (process 0) of 3 answered the others no more" in outcome.message
    assert "ranks 0, 2 stopped only because of that" in outcome.message
    of_watchdog = diagnose(workers((1, EXPLAINED), -9, killed=(1,)), None).message
    assert "Rank 1 is in data loading" in of_watchdog


def test_exit_code_2_is_a_failure_once_all_have_met() -> None:
    outcome = diagnose(workers(-9, (2, b"oh no\n"), killed=(0,)), None, all_connected=True)
    assert (outcome.code, outcome.may_restart) == (2, False)
    assert outcome.message.endswith("rank 1 of 2 failed with exit code 2. Its last lines:\n  [1] oh no")


def test_what_was_shown_is_not_repeated_in_full() -> None:
    text = "".join(f"line {number}\n" for number in range(30)).encode()
    assert diagnose(workers(0, (1, text)), None).message.count("line") == 4  # and "Its last lines"
    assert diagnose(workers(0, (1, text)), None, held={1}).message.count("  [1] line") == 20


CRASHES = """
import ctypes, faulthandler, sys, threading
faulthandler.enable()
begun, held = threading.Barrier(int(sys.argv[1]) + 1), threading.Event()
def watch():
    begun.wait()
    held.wait()
for _ in range(int(sys.argv[1])):
    threading.Thread(target=watch, daemon=True).start()
def the_step_that_crashes():
    ctypes.string_at(0)
def in_a_thread():
    the_step_that_crashes()
begun.wait()
print("a line before", file=sys.stderr, flush=True)
if sys.argv[2] == "main":
    the_step_that_crashes()
thread = threading.Thread(target=in_a_thread)
thread.start()
thread.join()
"""


@pytest.mark.parametrize("where", ["main", "thread"])
@pytest.mark.parametrize("others", [0, 1, 20])
def test_of_a_crash_the_thread_that_crashed_is_quoted(others: int, where: str) -> None:
    done = subprocess.run([sys.executable, "-c", CRASHES, str(others), where], stderr=subprocess.PIPE)
    assert done.returncode == -signal.SIGSEGV
    ended = workers(0, (done.returncode, done.stderr))
    for held in ((), {1}):
        quoted = diagnose(ended, None, held=held).message.partition("Its last lines:")[2].splitlines()
        assert ("  [1] a line before" in quoted) == bool(held)
        begin = quoted.index("  [1] Fatal Python error: Segmentation fault")
        assert quoted[begin + 1].startswith("  [1] Current thread 0x")
        assert quoted[begin + 2].endswith("in string_at")
        assert not any(line.endswith("in watch") for line in quoted)
    assert any(line.endswith("in the_step_that_crashes") for line in quoted)


def test_a_traceback_after_the_crash_of_a_child_is_what_counts() -> None:
    text = b"Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n  File x in y\n"
    text += b"rank 1 failed:\nTraceback (most recent call last):\n  File z\nBrokenProcessPool: why\n"
    assert diagnose(workers(0, (1, text)), None, held={1}).message.endswith("  File z\n  [1] BrokenProcessPool: why")


def test_of_an_exception_of_cpp_its_words_are_quoted() -> None:
    words = [
        "terminate called after throwing an instance of 'gloo::IoException'",
        "  what():  [pair.cc:4] Timed out",
        "",
    ]
    crash = "\n".join(
        ["earlier", *words, "Fatal Python error: Aborted", "", "Thread 0x1 (most recent call first):", "x"]
    )
    for held in ((), (1,)):
        message = diagnose(workers(0, (-6, crash.encode())), None, held=held).message
        said = [line.removeprefix("  [1] ") for line in message.splitlines()[1:]]
        assert said == [*words[:2], "Fatal Python error: Aborted"]


def test_of_a_crash_outside_of_python_no_thread_is_quoted() -> None:
    crash = b"a\nFatal Python error: Aborted\n\nThread 0x1 (most recent call first):\n  File x in watch\n"
    assert diagnose(workers(0, (-6, crash)), None).message.endswith("lines:\n  [1] Fatal Python error: Aborted")


def test_a_traceback_that_was_left_to_the_launcher_is_printed_whatever_ends_the_job() -> None:
    left = crashed("ValueError: x", "rank 1 on a failed:\nTraceback (most recent call last):\nValueError: x")
    lines = "\n  [1] rank 1 on a failed:\n  [1] Traceback (most recent call last):\n  [1] ValueError: x"
    assert diagnose(workers((1, LOST), (1, left)), None, all_connected=True).message.endswith(f"Its last lines:{lines}")
    for outcome in (diagnose(workers(75, (1, left)), None), diagnose(workers(75, (1, left)), signal.SIGTERM)):
        assert outcome.message.endswith(f"rank 1 of 2 failed with exit code 1. Its last lines:{lines}")


def test_where_the_cause_is_raised_the_launcher_says_what_others_have_left() -> None:
    left = [crashed("ValueError: x", "of 0"), crashed("ValueError: x", "of 1"), crashed("KeyError: y", "of 2")]
    assert words_of_others(workers(*((1, each) for each in left)), 0) == ["[2] of 2"]


FORWARD, IGNORE, KILL = SignalAction


@pytest.mark.parametrize(
    ("came", "actions"),
    [
        ([(TERM, 0), (TERM, 0.9), (INT, 1.0), (TERM, 1.1)], [FORWARD, IGNORE, IGNORE, KILL]),
        ([(USR1, 0), (TERM, 60), (TERM, 62)], [FORWARD, FORWARD, KILL]),
        ([(HUP, 0), (TERM, 60), (INT, 62)], [FORWARD, IGNORE, KILL]),  # workers have got SIGTERM for SIGHUP
        ([(TERM, 0), (HUP, 60), (USR1, 61)], [FORWARD, IGNORE, FORWARD]),
    ],
)
def test_what_a_signal_means(came: list[tuple[signal.Signals, float]], actions: list[SignalAction]) -> None:
    policy = SignalPolicy()
    assert [policy.action(number, at) for number, at in came] == actions


def test_workers_hear_of_a_terminal_that_is_gone_by_a_signal_that_they_know() -> None:
    assert for_workers(HUP) in REQUESTS


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_an_ignored_signal_stays_ignored(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with SignalInbox() as inbox:
            signal.raise_signal(number)
            signal.raise_signal(signal.SIGTERM)
            assert inbox.take() == [signal.SIGTERM]
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, before)


PAUSED = """
import os, signal, sys
from hvdtrain.launch.supervisor.console import Console
from hvdtrain.launch.supervisor.signals import SignalInbox
os.set_blocking(1, sys.argv[1] == "blocking")
with SignalInbox() as inbox:
    shown = Console(inbox)
    shown.holding = False
    os.write(2, b"begin\\n")
    for _ in range(300):
        shown.take(0, 1, b"x" * 999 + b"\\n")
    print([number.name for number in inbox.take()], file=sys.stderr)
"""


@pytest.mark.parametrize("mode", ["blocking", "not"])
def test_a_reader_that_pauses_loses_nothing_and_does_not_keep_signals_away(mode: str) -> None:
    def paused() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", PAUSED, mode],
            cwd=Path(__file__).parents[4],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stderr is not None
        assert process.stderr.readline() == b"begin\n"
        time.sleep(0.2)  # the pipe is full soon, and nobody can see when
        return process

    output, errors = paused().communicate(timeout=60)
    assert (len(output), errors) == (300_000, b"[]\n")
    stopped = paused()
    stopped.send_signal(signal.SIGTERM)
    assert stopped.wait(60) == 0
    output, errors = stopped.communicate(timeout=60)
    assert errors == b"['SIGTERM']\n"
    assert len(output) < 300_000


def test_a_terminal_that_is_gone_asks_to_stop_and_is_no_failure() -> None:
    far, near = os.openpty()
    with SignalInbox() as inbox:
        shown = Console(inbox)
        os.close(far)
        shown._write(near, b"x")
        assert inbox.take() == [signal.SIGHUP]
        shown._write(near, b"x")
        assert inbox.take() == []
    os.close(near)
