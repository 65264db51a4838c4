"""Workers that are threads, whose sums over ranks meet at a barrier."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray


class Ranks:
    """The sums over ranks of `size` threads."""

    def __init__(self, size: int) -> None:
        self._sent: list[tuple[NDArray[Any], str]] = []
        self._lock = threading.Lock()
        self._barrier = threading.Barrier(size, timeout=60)
        self.names: list[str] = []

    def sum(self, array: NDArray[Any], name: str) -> NDArray[Any]:
        with self._lock:
            self._sent.append((array, name))
        if self._barrier.wait() == 0:
            assert {other for _, other in self._sent} == {name}
            self.names.append(name)
        total = np.sum([sent for sent, _ in self._sent], axis=0)
        if self._barrier.wait() == 0:
            self._sent.clear()
        self._barrier.wait()
        return total

    def give_up(self) -> None:
        self._barrier.abort()


@pytest.fixture(scope="session")
def on_ranks() -> Callable[[int, Callable[[int, Ranks], Any]], tuple[list[Any], list[str]]]:
    """Runs work(rank, ranks) in so many threads; returns their results, and the names of all sums."""
    return _on_ranks


def _on_ranks(size: int, work: Callable[[int, Ranks], Any]) -> tuple[list[Any], list[str]]:
    ranks = Ranks(size)

    def worker(rank: int) -> Any:
        try:
            return work(rank, ranks)
        except BaseException:
            ranks.give_up()  # or the others would wait
            raise

    with ThreadPoolExecutor(size) as pool:
        results = list(pool.map(worker, range(size)))
    return results, ranks.names
