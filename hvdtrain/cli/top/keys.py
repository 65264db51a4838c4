"""Keys that are pressed while a command draws on the terminal."""

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def keys_at_once() -> Iterator[None]:
    """In the block, keys arrive when they are pressed, and are not shown. Without a terminal, nothing changes."""
    if not sys.stdin.isatty():
        yield
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def wait_for_key(wanted: str, seconds: float) -> bool:
    """Wait for so many seconds, or until one of the keys `wanted` is pressed; whether one was."""
    end = time.monotonic() + seconds
    if not sys.stdin.isatty():
        time.sleep(seconds)
        return False
    while (left := end - time.monotonic()) > 0:
        readable, _, _ = select.select([sys.stdin], [], [], left)
        if readable:
            pressed = os.read(sys.stdin.fileno(), 64).decode(errors="replace")
            if not pressed or set(wanted) & set(pressed):  # nothing: the terminal is gone
                return True
    return False
