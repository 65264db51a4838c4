"""Ranges are read once, by one thread, and again only where memory ends or reading fails."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from data_sharding.kept_blocks import KeptBlocks
from data_sharding.reading.kept_spans import KeptSpans


class Source:
    """Records of which each is its own number; `asked` has what was read."""

    def __init__(self, size: int = 8) -> None:
        self.asked: list[list[int]] = []
        self.fails = 0
        self._size, self._lock = size, threading.Lock()

    def read(self, ids: NDArray[np.int64], apart: NDArray[np.int64]) -> list[bytes]:
        with self._lock:
            self.asked += [ids[apart == number].tolist() for number in np.unique(apart)]
            if self.fails:
                self.fails -= 1
                raise OSError("no answer")
        return [self.payload(number) for number in ids.tolist()]

    def payload(self, number: int) -> bytes:
        return number.to_bytes(self._size, "big")


def ranges(ids: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    begins = ids // length * length
    return np.stack([begins, begins + length], axis=1)


@given(st.lists(st.lists(st.integers(0, 99), max_size=12), max_size=12), st.integers(1, 40))
def test_records_come_out_of_ranges_that_are_read_once(batches: list[list[int]], length: int) -> None:
    source = Source()
    kept = KeptSpans(source.read)
    for batch in batches:
        ids = np.array(batch, np.int64)
        assert kept.read(ids, ranges(ids, length)) == [source.payload(number) for number in batch]
    expected = {number // length for batch in batches for number in batch}
    assert sorted(source.asked) == [[*range(first * length, (first + 1) * length)] for first in sorted(expected)]


def test_threads_wait_for_the_one_that_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_sharding.reading.kept_spans.KEPT", KeptBlocks(1 << 20))
    source = Source()
    kept = KeptSpans(source.read)
    requests = [np.random.default_rng(seed).integers(0, 1000, 50) for seed in range(200)]
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda ids: kept.read(ids, ranges(ids, 10)), requests, timeout=60)
        for ids, payloads in zip(requests, answers, strict=True):
            assert payloads == [source.payload(number) for number in ids.tolist()]
    assert len(source.asked) == len({first for first, *_ in source.asked})


def test_no_more_is_kept_than_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_sharding.reading.kept_spans.KEPT", blocks := KeptBlocks(10_000))
    source = Source(936)  # 1,000 bytes a record with what an object takes
    kept = KeptSpans(source.read)
    for number in (0, 1, 2, 0, 3, 4, 0):
        ids = np.array([number * 4])
        kept.read(ids, ranges(ids, 4))
        assert blocks.kept <= 10_000
    assert [first for first, *_ in source.asked] == [0, 4, 8, 0, 12, 16, 0]
    blocks.keep_at_most(4_000)
    assert blocks.kept == 4_000


def test_what_failed_is_read_again() -> None:
    source = Source()
    source.fails = 1
    kept = KeptSpans(source.read)
    ids = np.array([3, 15])
    with pytest.raises(OSError, match="no answer"):
        kept.read(ids, ranges(ids, 10))
    assert kept.read(ids, ranges(ids, 10)) == [source.payload(3), source.payload(15)]
    assert len(source.asked) == 4
