"""The output of a build: its progress, and after a failure the line that explains it."""

import re
import time
from typing import TextIO

from hvdtrain.horovod_wheel.toolchain import debian_package

_PERCENT = re.compile(r"^\s*\[\s*(\d+)%\]")

# In the order in which they occur in a log, whichever comes first is the cause: a parallel make goes on for a while.
_ERROR = re.compile(
    r"\berror:|^\s*CMake Error|undefined reference to|cannot find -l|\bKilled\b|[Nn]o space left on device"
    r"|\*\*\* .*(Error \d+|Stop\.)|^\s*\w*Error: "
)

_COMPILER_ERROR = re.compile(r"\berror:|undefined reference to|cannot find -l|\bKilled\b")

_HINTS = {
    r"Killed|[Cc]annot allocate memory|virtual memory exhausted": (
        "memory ran out: set HVDTRAIN_BUILD_JOBS=1 and run `make setup` again."
    ),
    r"[Nn]o space left": "free some disk space, or set HVDTRAIN_CACHE_DIR to a folder with 2 GB to spare.",
    r"Python\.h": f"install Python's headers (Debian, Ubuntu: `apt-get install {debian_package('dev')}`).",
    r"MPI|mpi\.h": "the `mpicxx` on the path does not work: repair it, or take it off the path to use PyPI's Open MPI.",
    r"nvcc|[Cc]uda|CUDA|[Nn]ccl|NCCL": "set HVDTRAIN_WITHOUT_NCCL=1 to build for CPUs only, or complete the toolkit.",
    r"[Cc]\+\+17": "use a compiler with C++17: g++ 9 or later.",
}

_OTHER_HINT = "see the log; if the compiler is older than g++ 9 or newer than 14, try another through CXX."


# CMake wraps what the compiler said about its test program into a long message of its own.
_CMAKE_MESSAGE_LINES = 40


def first_error(log: str, context: int = 3) -> str | None:
    """The first line of `log` that is an error, and the `context` lines after it without empty ones; None if none is.
    Where CMake reports an error of the compiler, the compiler's own line is taken."""
    lines = [line for line in log.splitlines() if line.strip()]
    start = _first(_ERROR, lines, 0, len(lines))
    if start is None:
        return None
    if "CMake Error" in lines[start]:
        cause = _first(_COMPILER_ERROR, lines, start, min(start + _CMAKE_MESSAGE_LINES, len(lines)))
        start = start if cause is None else cause
    return "\n".join(lines[start : start + 1 + context])


def _first(pattern: re.Pattern[str], lines: list[str], start: int, end: int) -> int | None:
    return next((number for number in range(start, end) if pattern.search(lines[number])), None)


def hint_for(error: str) -> str:
    """What to do about an error that `first_error` found."""
    return next((hint for pattern, hint in _HINTS.items() if re.search(pattern, error)), _OTHER_HINT)


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
        percent = percent_of(line)
        if percent is None:
            return
        shown = percent if self._terminal else percent // 10 * 10
        if shown > self._shown:
            self._shown = shown
            self._show(shown)

    def close(self) -> None:
        if self._terminal and self._shown >= 0:
            print(file=self._out, flush=True)

    def _show(self, percent: int) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._start), 60)
        text = f"  compiling Horovod: {percent:3d} %, {minutes}:{seconds:02d} so far, {self._usually}"
        print(f"\r{text}" if self._terminal else text, end="" if self._terminal else "\n", file=self._out, flush=True)
