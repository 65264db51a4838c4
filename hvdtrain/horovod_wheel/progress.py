"""Says how far a build is, from the percentages that CMake's makefiles print."""

from __future__ import annotations

import re
import time
from typing import TextIO

_PERCENT = re.compile(r"^\s*\[\s*(\d+)%\]")


def percent_of(line: str) -> int | None:
    """42 for "[ 42%] Building CXX object …", None for other lines."""
    match = _PERCENT.match(line)
    return int(match[1]) if match else None


class Progress:
    """One line that is rewritten on a terminal; elsewhere a new line at every tenth."""

    def __init__(self, out: TextIO, usually: str) -> None:
        self._out = out
        self._usually = usually
        self._terminal = out.isatty()
        self._start = time.monotonic()
        self._shown = -1

    def feed(self, line: str) -> None:
        """Takes one line of the build's output."""
        percent = percent_of(line)
        if percent is None:
            return
        shown = percent if self._terminal else percent // 10 * 10
        if shown > self._shown:
            self._shown = shown
            self._show(shown)

    def close(self) -> None:
        """Ends the line on a terminal."""
        if self._terminal and self._shown >= 0:
            print(file=self._out, flush=True)

    def _show(self, percent: int) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._start), 60)
        text = f"  compiling Horovod: {percent:3d} %, {minutes}:{seconds:02d} so far, {self._usually}"
        print(f"\r{text}" if self._terminal else text, end="" if self._terminal else "\n", file=self._out, flush=True)
