"""The logs of all ranks of a run as one, in the order of time, in memory for one piece of each file."""

import heapq
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from hvdtrain.history.bounded_file import UnusableFileError
from hvdtrain.history.log_file import CHUNK, LogFile, LogLine

FOLDER: Final = "logs"
_NAME: Final = re.compile(r"rank_(\d{1,7})\.log")
_ALL_CHUNKS: Final = 2**26
_LEAST_CHUNK: Final = 2**12


def merged(logs: Iterable[Iterator[LogLine]]) -> Iterator[LogLine]:
    """The lines of several logs, by the times of their records; of equal times, those of the first log come first.

    The order inside of a log stays as it is, and a record's lines stay together.
    """
    heap: list[tuple[float, int, LogLine, Iterator[LogLine]]] = []
    for number, log in enumerate(logs):
        _push(heap, number, next(log, None), log)
    while heap:
        _, number, line, log = heapq.heappop(heap)
        yield line
        following = next(log, None)
        while following is not None and not following.begins:
            yield following
            following = next(log, None)
        _push(heap, number, following, log)


def _push(
    heap: list[tuple[float, int, LogLine, Iterator[LogLine]]], number: int, line: LogLine | None, log: Iterator[LogLine]
) -> None:
    if line is not None:
        heapq.heappush(heap, (line.time, number, line, log))


class RunLogs:
    """The logs of a run, which may get more lines and more files.

    Args:
        run: the run folder.
        ranks: only these; none: all.
    """

    def __init__(self, run: Path, ranks: Collection[int] = ()) -> None:
        self._folder, self._ranks = run / FOLDER, frozenset(ranks)
        self._files: dict[int, LogFile] = {}
        self.problems: dict[str, str] = {}
        """File → why it cannot be read."""

    def ranks(self) -> list[int]:
        """Those that have a file now."""
        found = []
        with suppress(OSError):
            found = [int(m[1]) for path in self._folder.iterdir() if (m := _NAME.fullmatch(path.name))]
        return sorted(rank for rank in found if not self._ranks or rank in self._ranks)

    def lines(self, whole: bool) -> Iterator[LogLine]:
        """The lines that have come since the last call. Args: `whole`: as `LogFile.lines` has it."""
        ranks = self.ranks()
        chunk = max(_LEAST_CHUNK, min(CHUNK, _ALL_CHUNKS // max(1, len(ranks))))
        for rank in ranks:
            if rank not in self._files:
                self._files[rank] = LogFile(self._folder / f"rank_{rank}.log", rank, chunk)
        return merged([self._lines_of(self._files[rank], whole) for rank in ranks])

    def _lines_of(self, file: LogFile, whole: bool) -> Iterator[LogLine]:
        try:
            yield from file.lines(whole)
            self.problems.pop(file.path.name, None)
        except FileNotFoundError:
            pass  # removed meanwhile; a new one may come
        except OSError as error:
            self.problems[file.path.name] = f"cannot be read: {error.strerror or error}"
        except UnusableFileError as error:
            self.problems[file.path.name] = str(error)


def follow(logs: RunLogs, has_ended: Callable[[], bool], wait: Callable[[], object]) -> Iterator[LogLine]:
    """All lines, and those that come later, until the run has ended and all is read.

    Lines are in the order of time among those that are there at the same time: a line that comes late is not held back.

    Args:
        has_ended: whether nothing more will be written.
        wait: until it is time to look again.
    """
    while True:
        is_last = has_ended()
        yield from logs.lines(whole=is_last)
        if is_last:
            return
        wait()
