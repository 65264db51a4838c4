"""What code that makes records prints: each line once a rank, and at the end how often it came again.

`decode` and the transforms of an object run for each batch or record, in several threads or processes. While they run
in a thread, `sys.stdout` and `sys.stderr` sort out the whole lines that this thread has printed before; what other
threads print, text without an end of line, what goes to the file descriptors and what `logging` writes pass as they
are. Lines that differ are all shown.
"""

import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from data_sharding import RecordBatch, RecordReader

_STREAMS: Final = ("stdout", "stderr")
_MOST_REMEMBERED: Final = 10_000
_MOST_COUNTED: Final = 5
_KEPT_STREAMS: Final = 64
_REPORT: Final = "hvdtrain: prints"
"""An array beside the features, by which a decode process hands over the lines that were printed in it."""

Line = tuple[str, str]
"""The name of its stream, and the text without the end of line."""


class PrintedLines:
    """The lines that a process has seen. A rank shows new ones at once; its decode processes hand theirs to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: Counter[Line] = Counter()
        self._held: Counter[Line] | None = None  # of a decode process
        self._depth = 0
        self._made: deque[_Sorting] = deque(maxlen=_KEPT_STREAMS)
        self._here = threading.local()  # text of this thread without an end of line yet, by stream

    @contextmanager
    def sorted_out(self) -> Iterator[None]:
        """In this thread and this block, lines are shown once."""
        if getattr(self._here, "text", None) is not None:
            yield
            return
        self._here.text = dict.fromkeys(_STREAMS, "")
        self._change_streams(1)
        try:
            yield
        except BaseException:
            self._show_held()  # nothing is sent beside an exception
            raise
        finally:
            rest, self._here.text = self._here.text, None
            for stream in filter(rest.get, _STREAMS):
                _stream(stream).write(rest[stream])
            self._change_streams(-1)

    def write(self, stream: str, text: str) -> bool:
        """Take what this thread prints; False: it is not sorted out."""
        parts = getattr(self._here, "text", None)
        if parts is None:
            return False
        *lines, parts[stream] = (parts[stream] + text).split("\n")
        for line in lines:
            self.add((stream, line))
        return True

    def add(self, line: Line, times: int = 1) -> None:
        """A line was printed so many times."""
        with self._lock:
            if self._held is not None:
                self._held[line] += times
                return
            is_new = line not in self._times
            if not is_new or len(self._times) < _MOST_REMEMBERED:
                self._times[line] += times
        if is_new:
            _stream(line[0]).write(f"{line[1]}\n")
            _stream(line[0]).flush()

    def hold(self) -> None:
        """Show nothing: this is a decode process, whose rank asks for what was `held`."""
        self._held = Counter()

    def held(self) -> dict[Line, int]:
        """What was printed since the last call; nothing where lines are shown at once."""
        with self._lock:
            if self._held is None:
                return {}
            held, self._held = self._held, Counter()
        return dict(held)

    def forget(self) -> None:
        """All lines, since another run may follow in this process."""
        with self._lock:
            self._times.clear()

    def repeated(self) -> list[str]:
        """Sentences that say how often lines came again, the most frequent ones first."""
        again = [(line, times - 1) for line, times in self._times.most_common() if times > 1 and line[1].strip()]
        shown = [
            f"hvdtrain: code that makes records printed this line again ({count:,} times): {line}"
            for (_, line), count in again[:_MOST_COUNTED]
        ]
        others = [f"hvdtrain: and {len(again) - len(shown):,} other lines again"] if len(again) > len(shown) else []
        return shown + others

    def _show_held(self) -> None:
        for line in self.held():
            _stream(line[0]).write(f"{line[1]}\n")

    def _change_streams(self, change: int) -> None:
        """Put ours in front of the streams for the first block, and take it away after the last one."""
        with self._lock:
            self._depth += change
            for name in _STREAMS:
                stream = getattr(sys, name)
                if self._depth == 0 and isinstance(stream, _Sorting):
                    setattr(sys, name, stream.original)
                elif self._depth and stream is not None and not isinstance(stream, _Sorting):
                    setattr(sys, name, self._in_front_of(stream, name))

    def _in_front_of(self, stream: Any, name: str) -> "_Sorting":
        """Another thread may be in `print()`, which uses `sys.stdout` without holding a reference to it (CPython, issue
        130163): what was in its place is not freed."""
        for made in self._made:
            if made.original is stream and made.name == name:
                return made
        self._made.append(_Sorting(stream, name, self))
        return self._made[-1]


class _Sorting:
    """A stream in front of another one; it may stay there if somebody else has put one in front of it meanwhile."""

    def __init__(self, original: Any, name: str, lines: PrintedLines) -> None:
        self.original, self.name, self._lines = original, name, lines

    def write(self, text: str) -> int:
        return len(text) if self._lines.write(self.name, text) else self.original.write(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)


def _stream(name: str) -> Any:
    stream = getattr(sys, name)
    return stream.original if isinstance(stream, _Sorting) else stream


PRINTED: Final = PrintedLines()
"""Of this process: a rank prints for all its sets of records together."""


@contextmanager
def printed_once() -> Iterator[None]:
    """A run: at its end, also by an error, the rank says which lines came again and how often. Its data may have been
    opened before."""
    try:
        yield
    finally:
        for sentence in PRINTED.repeated():
            print(sentence, flush=True)
        PRINTED.forget()


class SortingReader(RecordReader):
    """A `RecordReader` of which items that print, print once; its copy in a decode process hands the lines over."""

    def load(self, *wanted: Any, **more: Any) -> RecordBatch:
        with PRINTED.sorted_out():
            return super().load(*wanted, **more)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reader_of_process, super().__reduce__()[1]


def _reader_of_process(*arguments: Any) -> SortingReader:
    PRINTED.hold()
    return SortingReader(*arguments)


@dataclass(frozen=True)
class HandingDecode:
    """In a decode process: `decode`, whose results have beside them what was printed there."""

    decode: Callable[[RecordBatch], dict[str, NDArray[Any]]]

    @property
    def __wrapped__(self) -> Callable[[RecordBatch], dict[str, NDArray[Any]]]:
        return self.decode

    def __call__(self, records: RecordBatch) -> dict[str, NDArray[Any]]:
        features = self.decode(records)
        held = PRINTED.held()
        if not held or not isinstance(features, Mapping):
            return features
        report = np.full(len(records), None)
        report[0] = held
        return {**features, _REPORT: report}


def take_prints(features: dict[str, NDArray[Any]]) -> None:
    """Take what a decode process has handed over away from its features, and show what is new."""
    report = features.pop(_REPORT, None)
    for line, times in () if report is None else report[0].items():
        PRINTED.add(line, times)
