"""What the supervisor knows of one worker, wherever it runs."""

import signal
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from hvdtrain.errors import UsageError
from hvdtrain.failure_record import FailureRecord
from hvdtrain.launch.processes.worker import WorkerExit

TAIL_LINES = 60
CRASH = "Fatal Python error"  # first words of the interpreter's report of a crash: faulthandler's
_CRASH_LINES = 1000  # of that report: the stack of any of many threads may be the one that matters
_LINE_BYTES = 4000  # of a line that is kept for the report
# A worker that one of these has ended did not fail because of another one, whatever it has printed before.
_CRASHES = frozenset({-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE})
_HOROVODS_OWN = ("HorovodInternalError", "Horovod has been shut down", "Horovod initialization failed")
"""Of programs that leave no record."""


@dataclass
class OutputTail:
    """The last lines of one worker; of a crash, the whole report. Of a line that was redrawn by carriage returns, what
    was seen last. `on_line` is called with the stream and the text of each line, also of those that are not kept."""

    lines: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    on_line: Callable[[int, str], None] | None = None
    _rests: dict[int, bytes] = field(default_factory=dict)  # a stream's line that has no end yet

    def add(self, stream: int, data: bytes) -> None:
        *whole, rest = (self._rests.get(stream, b"")[-_LINE_BYTES:] + data).split(b"\n")
        self._rests[stream] = rest
        for line in map(_seen, whole):
            if CRASH in line:
                self.lines = deque(self.lines, maxlen=_CRASH_LINES)
            self.lines.append(line)
            if self.on_line is not None:
                self.on_line(stream, line)

    def finish(self) -> None:
        """Nothing more is written: a last line without an end is a line, too."""
        for stream in [stream for stream, rest in self._rests.items() if rest]:
            self.add(stream, b"\n")

    def text(self) -> list[str]:
        rests = (_seen(self._rests[stream]) for stream in sorted(self._rests))
        return [*self.lines, *filter(None, rests)]


def _seen(line: bytes) -> str:
    return line.rstrip(b"\r").rpartition(b"\r")[2][:_LINE_BYTES].decode(errors="replace")


@dataclass
class WorkerState:
    """One worker; its rank, or its number while it is in no world. `was_replaced`: the job went on without it."""

    rank: int
    host: str = ""  # where all are on this machine
    process: int = 0  # its number there, once it was started
    tail: OutputTail = field(default_factory=OutputTail)
    end: WorkerExit | None = None
    order: int = 0  # how many workers had ended before it
    was_replaced: bool = False

    @property
    def code(self) -> int:
        """Its exit code; of a worker that has not ended, 1."""
        return self.end.code if self.end else 1

    @property
    def failure(self) -> FailureRecord | None:
        return self.end.failure if self.end else None

    @property
    def computes_wrongly(self) -> bool:
        """Whether it has ended because others have found that (--check-workers)."""
        return self.failure is not None and self.failure.kind == "wrong_worker"

    @property
    def on_host(self) -> str:
        """ " on HOST", or nothing where there is one host only."""
        return f" on {self.host}" if self.host else ""

    @property
    def is_consequence(self) -> bool:
        """Whether it failed only because another worker did: its record says so, or Horovod in a foreign program."""
        if self.failure is not None:
            return self.failure.is_consequence
        return self.code not in (*_CRASHES, UsageError.exit_code) and any(
            sign in line for line in self.tail.text() for sign in _HOROVODS_OWN
        )
