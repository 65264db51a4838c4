"""Signals that end a command as an exception would, so that what it has begun to write is removed."""

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final

ENDING: Final = (signal.SIGTERM, signal.SIGHUP)  # they end a command that is not a job


@contextmanager
def interrupts_afterwards() -> Iterator[None]:
    """In the main thread, SIGINT within the block counts when it has ended: for imports of compiled modules, some of
    which make another error of a KeyboardInterrupt. Other handlers than Python's own stay as they are."""
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    received: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is note:  # else the block has set another one
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if received:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def exiting_at(signals: Sequence[signal.Signals], then: str = "") -> Iterator[None]:
    """In the main thread, `signals` raise SystemExit(128 + number), so that the block cleans up. Only the first one
    does, for the clean-up must not be disturbed. Ignored signals stay ignored. `then`: for standard error when the
    block has cleaned up, after "ended by SIGTERM; ". Raises SystemExit: a signal came, and the block's own clean-up is
    done."""
    in_main = threading.current_thread() is threading.main_thread()
    wanted = [number for number in signals if in_main and signal.getsignal(number) not in (signal.SIG_IGN, None)]
    received: list[signal.Signals] = []

    def end(number: int, _frame: FrameType | None) -> None:
        if received:  # signal.signal() itself first runs the handlers of signals that have come meanwhile
            return
        received.append(signal.Signals(number))
        for other in wanted:
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in wanted}
    try:
        yield
    except SystemExit:
        if received and then:
            sys.stderr.write(f"hvdtrain: ended by {received[0].name}; {then}\n")
        raise
    finally:
        if not received:  # else this process ends, and more signals must not disturb that either
            for number, handler in before.items():
                signal.signal(number, handler)
