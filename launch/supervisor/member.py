"""What the supervisor knows of one worker, wherever it runs."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import final

from hvdtrain.launch.processes.worker import End

TAIL_LINES = 60
_LINE_BYTES = 4000  # of a line that is kept for the report


@final
@dataclass
class Tail:
    """The last lines of one worker. Of a line that was redrawn by carriage returns, what was seen last."""

    lines: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    _rest: bytes = b""

    def add(self, data: bytes) -> None:
        """Take what was read."""
        *whole, self._rest = (self._rest[-_LINE_BYTES:] + data).split(b"\n")
        for line in whole:
            shown = line.rstrip(b"\r").rpartition(b"\r")[2][:_LINE_BYTES]
            self.lines.append(shown.decode(errors="replace"))

    def text(self) -> list[str]:
        """All lines, an unfinished one too."""
        rest = self._rest.rpartition(b"\r")[2][:_LINE_BYTES].decode(errors="replace")
        return [*self.lines, *([rest] if rest else [])]


@final
@dataclass
class Member:
    """One worker.

    Attributes:
        rank: its number.
        host: where it runs; empty where all are on this machine.
        process: its number there, once it was started.
        tail: what it wrote last.
        end: how it ended, once it has.
        order: how many workers had ended before it.
    """

    rank: int
    host: str = ""
    process: int = 0
    tail: Tail = field(default_factory=Tail)
    end: End | None = None
    order: int = 0

    @property
    def code(self) -> int:
        """Its exit code; of a worker that has not ended, 1."""
        return self.end.code if self.end else 1

    @property
    def place(self) -> str:
        """ " on HOST", or nothing where there is one host only."""
        return f" on {self.host}" if self.host else ""
