"""Signals that end a command as an exception would: what it has begun to write is removed."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final

_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def cleaning_up_at_signals() -> Iterator[None]:
    """In the main thread, SIGTERM and SIGHUP raise SystemExit(128 + number), once. Ignored signals stay ignored.

    Raises:
        SystemExit: a signal came, and the block's own clean-up is done.
    """
    wanted = [number for number in _ENDING if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    if threading.current_thread() is not threading.main_thread():
        wanted = []
    received: list[signal.Signals] = []

    def end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        for other in wanted:
            signal.signal(other, signal.SIG_IGN)  # the clean-up is not disturbed
        received.append(signal.Signals(number))
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in wanted}
    try:
        yield
    except SystemExit:
        if received:
            sys.stderr.write(f"hvdtrain: ended by {received[0].name}; nothing was left half done\n")
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
