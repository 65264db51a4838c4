"""What carries the bytes between the launcher and one agent: a program such as ssh, or whatever else a launcher has."""

import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Protocol, cast

from hvdtrain.errors import UsageError

_ERRORS_BYTES = 4000


class LineError(Exception):
    """There is no agent at the other end; the text says why."""


class Line(Protocol):
    """One agent, which runs or is starting. `open` is called once, in a thread; the others from any thread."""

    def open(self, seconds: float) -> tuple[int, int]:
        """File descriptors to read what the agent says, and to write to it; may wait so long. Raises LineError."""

    def hang_up(self) -> None:
        """End the agent's input."""

    def kill(self) -> None:
        """End the line at once, and whatever waits for it."""

    def ended(self, seconds: float) -> str:
        """How it ended, for people, in brackets, once nothing more can be read; waits no longer than `seconds`."""

    def last_words(self) -> str:
        """What it complained of last; empty if of nothing."""

    def close(self) -> None:
        """Forget it; it has ended."""


class ProgramLine:
    """A program, which is the agent or leads to it: its standard input and output are the line. Raises UsageError: it
    cannot be started."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  `close` closes it
        self._process = _started(argv, self._errors)
        self._in, self._out = cast(IO[bytes], self._process.stdin), cast(IO[bytes], self._process.stdout)
        self._files = self._out.fileno(), self._in.fileno()

    def open(self, _seconds: float) -> tuple[int, int]:
        return self._files

    def hang_up(self) -> None:
        with suppress(OSError):
            self._in.close()

    def kill(self) -> None:
        self._process.kill()

    def ended(self, seconds: float) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        self._process.kill()
        return f" (exit code {self._process.wait()})"

    def last_words(self) -> str:
        self._errors.seek(max(0, self._errors.seek(0, 2) - _ERRORS_BYTES))
        said = [line for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        return said[-1].strip()[:300] if said else ""

    def close(self) -> None:
        self._out.close()
        self._errors.close()


def _started(argv: Sequence[str], errors: IO[bytes]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            bufsize=0,
            start_new_session=True,  # out of reach of the terminal's signals: the launcher forwards them in its order
        )
    except OSError as error:
        errors.close()
        fact = f"{argv[0]} cannot be started: {error.strerror or error}."
        if "-m" in argv[:3]:
            raise UsageError(fact, "Workers of this machine are started by it.", "check --python.") from error
        hint = "install it (Debian: apt-get install openssh-client)."
        raise UsageError(fact, "Agents on other hosts are started by it.", hint) from error
