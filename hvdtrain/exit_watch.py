"""A process whose work is done must end: it says what it waits for, and does not wait for ever.

Python ends a process by waiting for all threads that are not daemons, and by calling what was registered with atexit;
then libraries clean up. Each of these may wait without an end, and with it the launcher and the reservation of a job.
"""

import atexit
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from hvdtrain.errors import UsageError
from hvdtrain.failure_record import must_return
from hvdtrain.log_flush import close_logs_before_exit, flush_output

TIMEOUT_VARIABLE: Final = "HVDTRAIN_EXIT_TIMEOUT"
TIMEOUT_SECONDS: Final = 1800.0
"""An upload that a task's own code has left for the end of the process may take its time."""
_SAID_SECONDS: Final = 60.0
_codes: Final[list[int]] = []  # of all works of this process; the watch begins with the first


def completed(rank: int, who: Callable[[], str], work: Callable[[], int]) -> int:
    """Do the work of a rank, in messages `who()`; returns its exit code, with which its process is to end.

    Raises UsageError: HVDTRAIN_EXIT_TIMEOUT is not a number of seconds. What `work` raises.
    """
    seconds = _timeout()
    with must_return(rank) as done:
        done.code = work()
    _codes.append(done.code)
    if len(_codes) == 1:
        threading.Thread(target=_watch, args=(who, seconds, _beginning()), name="exit-watch", daemon=True).start()
        atexit.register(_set_alarm, seconds)
    return done.code


def _beginning() -> Callable[[], object]:
    """What waits until the interpreter begins to end."""
    begins = threading.Event()
    try:
        # Called before pools of threads are waited for, and that before the main thread counts as ended.
        threading._register_atexit(begins.set)  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):  # it is of CPython's own modules; or the end has begun
        return threading.main_thread().join
    return begins.wait


def _timeout() -> float:
    text = os.environ.get(TIMEOUT_VARIABLE, str(TIMEOUT_SECONDS))
    with suppress(ValueError):
        if 1 <= float(text) <= 1e9:
            return float(text)
    raise UsageError(
        f"{TIMEOUT_VARIABLE} is {text!r}.",
        "It is the number of seconds that a process may take to end after its work is done, at least 1.",
        f"leave it out for {TIMEOUT_SECONDS:g}.",
    )


def _watch(who: Callable[[], str], seconds: float, await_beginning: Callable[[], object]) -> None:
    await_beginning()
    until = time.monotonic() + seconds
    time.sleep(min(_SAID_SECONDS, seconds))
    _say(f"{who()}: the work is done, and the process has not ended: it waits for {_awaited()}.")
    time.sleep(max(0.0, until - time.monotonic()))
    _say(f"{who()}: the process is ended, {seconds:g} s after its work was done ({TIMEOUT_VARIABLE}).")
    close_logs_before_exit()
    flush_output()
    os._exit(_codes[-1])


def _set_alarm(seconds: float) -> None:
    """Of the kernel: when the interpreter has ended, and libraries clean up, no thread of ours runs any more."""
    if signal.getsignal(signal.SIGALRM) == signal.SIG_DFL:
        signal.alarm(int(seconds) + 2)


def _awaited() -> str:
    """What keeps the interpreter: threads, or what the main thread calls."""
    frames, main = sys._current_frames(), threading.main_thread()
    threads = [each for each in threading.enumerate() if not each.daemon and each is not main]
    named = [f"thread {each.name!r}, {_place(frames.get(each.ident or 0))}" for each in threads]
    return "; ".join(named) or f"what is called at exit, {_place(frames.get(main.ident or 0))}"


def _place(frame: object) -> str:
    """The innermost line of Python that runs there."""
    lines = traceback.extract_stack(frame) if frame is not None else []  # type: ignore[arg-type]
    return f"in {lines[-1].name}() at {lines[-1].filename}:{lines[-1].lineno}" if lines else "which runs no Python"


def _say(line: str) -> None:
    with suppress(OSError):
        os.write(2, f"{line}\n".encode())
