"""Ranges of neighbouring records that are read together, and kept while `kept_blocks.KEPT` has room for them."""

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Final

import numpy as np
from numpy.typing import NDArray

from data_sharding.kept_blocks import KEPT

_OBJECT_BYTES: Final = 64
"""What a byte string takes besides its bytes: its header, its place in a list, and what the allocator rounds up."""

Range = tuple[int, int]


class KeptSpans:
    """Reads records out of ranges, each of which is read whole, and by one thread: others wait for it.

    Args: `read`: gives the bytes of records ids int64[k], each range's, whose numbers come with them, by itself: what
        is between two ranges is not to be read.
    """

    def __init__(self, read: Callable[[NDArray[np.int64], NDArray[np.int64]], list[bytes]]) -> None:
        self._read_all = read
        self._lock = threading.Lock()
        self._ranges: dict[Range, Future[list[bytes]]] = {}

    def read(self, ids: NDArray[np.int64], ranges: NDArray[np.int64]) -> list[bytes]:
        """The bytes of records ids int64[k], record i out of the range [ranges[i, 0], ranges[i, 1]).

        Errors as `read`, also of another thread that reads one of these ranges.
        """
        places: list[Range] = [(begin, end) for begin, end in ranges.tolist()]
        wanted = dict.fromkeys(places)
        missing: dict[Range, Future[list[bytes]]] = {}
        with self._lock:
            for place in wanted:
                if place not in self._ranges:
                    self._ranges[place] = missing[place] = Future()
            spans = {place: self._ranges[place] for place in wanted}
        if missing:
            self._fetch(missing)
        read = {place: future.result() for place, future in spans.items()}
        KEPT.used(self, read)
        return [read[place][record - place[0]] for record, place in zip(ids.tolist(), places, strict=True)]

    def drop(self, key: Hashable) -> None:
        """Keep this range no longer."""
        with self._lock:
            self._ranges.pop(key, None)  # type: ignore[call-overload]

    def close(self) -> None:
        """Keep nothing."""
        with self._lock:
            self._ranges.clear()

    def _fetch(self, missing: dict[Range, Future[list[bytes]]]) -> None:
        """Read these ranges, all at once, for whoever waits for them."""
        try:
            lengths = [end - begin for begin, end in missing]
            ids = np.concatenate([np.arange(*place) for place in missing])
            spans = self._read_all(ids, np.repeat(np.arange(len(lengths)), lengths))
        except BaseException as error:
            for place, future in missing.items():
                self.drop(place)  # to be read again: the next try may succeed
                future.set_exception(error)
            raise
        begin = 0
        for place, future in missing.items():
            end = begin + place[1] - place[0]
            future.set_result(spans[begin:end])
            KEPT.add(self, place, sum(map(len, spans[begin:end])) + _OBJECT_BYTES * (end - begin))
            begin = end
