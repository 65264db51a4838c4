"""How an exception that is not an hvdtrain error is reported: by the frames of the user's code, once for all ranks."""

import logging
import os
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException

OTHER_LAUNCHERS_SECONDS = 4.0
"""The time in which a launcher that is not ours ends the other ranks, after rank 0 has failed and printed the cause."""

_OURS = tuple(str(Path(__file__).parents[2] / package) + os.sep for package in ("hvdtrain", "data_sharding", "launch"))
_LIBRARY = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
_INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
_GENERATED = ("<frozen", "__autograph_generated_file")  # the interpreter's own; TensorFlow's copies of the user's code
_TOLD_BY_TENSORFLOW = "in user code:"  # how it begins the text of an exception in a graph; the user's frames follow
_SHORT_CHARACTERS = 300
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # Keras' messages have them wherever they are printed
_KERAS_ARGUMENTS = re.compile(r"\n\nArguments received by [^\n]*(?:\n  • [^\n]*)*")  # they push the cause out of sight


class Failure:
    """One exception, as it was caught."""

    def __init__(self, error: BaseException) -> None:
        self.full = _COLOURS.sub("", "".join(TracebackException.from_exception(error).format()))
        """The whole traceback."""
        self._told = TracebackException.from_exception(error)
        self._own = [frame for part in _chain(self._told) for frame in part.stack if _is_own(frame)]
        self._text = _plain("".join(self._told.format_exception_only())).split("\n")
        self._in_text = _TOLD_BY_TENSORFLOW in self._text[0]

    def traceback(self, log: str | None) -> str:
        """The end of a line, and a traceback whose last frame is the user's, where any is; else the whole one.

        `log` is the file that holds the whole one, if there is any.
        """
        if not self._own and not self._in_text:
            return f":\n{self.full}"
        hidden = 0
        for part in _chain(self._told):
            kept = [frame for frame in part.stack if _is_own(frame)]
            hidden += len(part.stack) - len(kept)
            part.stack = StackSummary.from_list(kept)
        where = f"all are in {log}" if log else "--debug shows them"
        note = f" ({hidden} frames of libraries are not shown; {where})" if hidden else ""
        return f"{note}:\n{_plain(''.join(self._told.format()))}"

    def line(self) -> str:
        """The exception and the user's last frame."""
        lines = [line.strip() for line in self._text if line.strip()]
        what = " ".join(lines[-1:] if self._in_text else lines)[:_SHORT_CHARACTERS]
        frame = self._own[-1] if self._own else None
        return what if frame is None else f"{what} ({frame.filename}:{frame.lineno} in {frame.name})"


def log_file() -> str | None:
    """This rank's log file, once it has one."""
    files = (h.baseFilename for h in logging.getLogger("hvdtrain").handlers if isinstance(h, logging.FileHandler))
    path = next(files, None)
    return path and min(path, os.path.relpath(path), key=len)


def _plain(text: str) -> str:
    return _KERAS_ARGUMENTS.sub("", _COLOURS.sub("", text))


def _chain(told: TracebackException) -> Iterator[TracebackException]:
    """An exception, what caused it, and what a group of them holds; in the order in which they are printed."""
    for before in (told.__cause__, told.__context__ if told.__cause__ is None else None):
        if before is not None:
            yield from _chain(before)
    yield told
    for part in told.exceptions or ():
        yield from _chain(part)


def _is_own(frame: FrameSummary) -> bool:
    name = frame.filename
    return not (name.startswith((*_OURS, *_LIBRARY)) or any(part in name for part in (*_INSTALLED, *_GENERATED)))
