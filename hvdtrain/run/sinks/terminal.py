"""The terminal that shows this process's output, also through a launcher: whether it can show a bar, its width, and how
texts that others wrote are shown in it."""

import os
from contextlib import suppress
from pathlib import Path
from typing import TextIO

_ANCESTORS = 8  # launchers put no more processes than this between the terminal and a worker
_TERMINALS = ("/dev/pts/", "/dev/tty", "/dev/console")
_COLUMNS = 80  # where nobody tells

_TAGS = {"hvdtrain launch": 0, "horovodrun": len("[0]<stderr>:")}
"""Launchers that pass carriage returns at once → columns that they write before each piece.

Open MPI 5's mpirun, and with it `horovodrun` over MPI, collects whole lines: a bar would appear when it is finished.
"""


_WIDEST, _NARROWEST = 100, 40  # of tables
_CONTROLS = {code: f"\\x{code:02x}" for code in [*range(32), *range(127, 160)] if chr(code) != "\t"}
_UNTAGGED = ("single", "hvdtrain launch")
_LONGEST_TAG = len("[1,10]<stdout>: ")  # horovodrun's and mpirun's


def printable(text: str) -> str:
    """The text with control characters as escapes: a terminal would obey them, whoever has put them there."""
    return text.translate(_CONTROLS)


def table_columns(stream: TextIO, launcher: str, stated: int = 0) -> int:
    """How wide a table may be that is printed on `stream`, so that the terminal breaks none of its lines, also where
    the launcher writes a tag before each.

    `stated`: how wide the terminal is where that cannot be asked, as `stated_columns` says; 0: as wide as may be.
    """
    width = _width(stream.fileno()) if stream.isatty() else 0
    if not width and launcher != "single":  # mpirun's own terminal has no size
        width = _width(_of_an_ancestor())
    width = width or stated
    tag = 0 if launcher in _UNTAGGED else _LONGEST_TAG
    return max(_NARROWEST, min(_WIDEST, width - tag - 1 if width else _WIDEST))


class Terminal:
    """Where `stream` ends, in a job that `launcher` has started."""

    def __init__(self, stream: TextIO, launcher: str) -> None:
        self.is_direct = stream.isatty()
        """Whether the stream is a terminal itself, without a launcher between."""
        self._tag = 0 if self.is_direct else _TAGS.get(launcher, 0)
        self._place: int | str | None = None
        if self.is_direct:
            self._place = stream.fileno()
        elif launcher in _TAGS:
            self._place = _of_an_ancestor()

    @property
    def redraws(self) -> bool:
        """Whether somebody sees a line that is redrawn by carriage returns."""
        return self._place is not None

    def columns(self) -> int:
        """How long a redrawn line may be. To be asked for each of them: terminals are resized."""
        columns = _width(self._place) or stated_columns() or _COLUMNS
        return max(1, columns - self._tag - 1)


def stated_columns() -> int:
    """What the environment says; 0 where it says nothing."""
    stated = os.environ.get("COLUMNS", "")
    return int(stated) if stated.isdigit() else 0


def _of_an_ancestor() -> str | None:
    """The terminal of the nearest ancestor that does not itself write into a pipe.

    Launchers read workers' outputs from pipes and pass them on, so a worker's own stream never is a terminal.
    """
    process = os.getppid()
    for _ in range(_ANCESTORS):
        try:
            target = os.readlink(f"/proc/{process}/fd/2")
            if not target.startswith(("pipe:", "socket:")):
                return target if target.startswith(_TERMINALS) else None
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return None  # not Linux, or the ancestor is gone or another user's: lines are always right
    return None


def _width(place: int | str | None) -> int:
    """In columns; 0 if unknown: no size was set, or it is another container's or another user's terminal."""
    if place is None:
        return 0
    with (
        suppress(OSError),
        open(place, "rb", buffering=0, closefd=not isinstance(place, int), opener=_open_terminal) as file,
    ):
        return os.get_terminal_size(file.fileno()).columns
    return 0


def _open_terminal(path: str, _flags: int) -> int:
    return os.open(path, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
