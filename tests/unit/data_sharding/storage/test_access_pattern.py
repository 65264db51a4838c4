"""What goes through a file header by header fetches blocks or small ranges, whichever takes less time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_sharding.storage import access_pattern
from data_sharding.storage.byte_ranges import ReadAhead

MB = 1 << 20


class Link:
    """Time that passes by fetching: a latency for each request, and the bytes over the rate. Bytes are their places."""

    def __init__(self, latency_s: float, rate: float) -> None:
        self.latency_s, self.rate = latency_s, rate
        self.now, self.bytes, self.requests = 0.0, 0, 0

    def fetch(self, begin: int, end: int) -> bytes:
        self.now += self.latency_s + (end - begin) / self.rate
        self.bytes += end - begin
        self.requests += 1
        return bytes(end - begin)

    def clock(self) -> float:
        return self.now


def walk(link: Link, size: int, record: int) -> None:
    """As an index goes through a file of records: 12 bytes in front of each, 4 behind it."""
    ahead = ReadAhead(link.fetch, size, link.clock)
    for begin in range(0, size - record - 16, record + 16):
        ahead.read(begin, begin + 12)
        ahead.read(begin + 12 + record, begin + 16 + record)


@pytest.mark.parametrize("latency_s", [0.001, 0.02, 0.1])
@pytest.mark.parametrize("rate", [0.8 * MB, 12 * MB, 120 * MB])
@pytest.mark.parametrize("record", [1 << 10, 20 << 10, 110 << 10, MB, 5 * MB])
def test_the_faster_way_is_found(latency_s: float, rate: float, record: int, monkeypatch: pytest.MonkeyPatch) -> None:
    size = max(64 * MB, 60 * record)
    chosen, blocks = Link(latency_s, rate), Link(latency_s, rate)
    walk(chosen, size, record)
    monkeypatch.setattr(access_pattern, "_FEW", -1)
    walk(blocks, size, record)
    small_s = size / record * (latency_s + access_pattern.SMALL / rate)
    tried_s = 4 * latency_s + 4 * MB / rate
    assert chosen.now <= 1.1 * min(blocks.now, small_s) + tried_s


def test_small_records_cost_no_trial() -> None:
    link = Link(0.02, 12 * MB)
    walk(link, 64 * MB, 1 << 10)
    assert link.requests <= 14  # 256 KiB, doubling to 8 MiB


@given(
    st.lists(st.tuples(st.integers(0, 3 * MB), st.integers(0, 3000)), max_size=60),
    st.lists(st.floats(0, 10), min_size=200, max_size=200),
)
def test_whatever_it_chooses_the_bytes_are_those_of_the_file(looks: list[tuple[int, int]], times: list[float]) -> None:
    content = bytes(range(251)) * (16 * MB // 251)
    clock: Callable[[], float] = iter(times * 2).__next__
    ahead = ReadAhead(lambda begin, end: content[begin:end], len(content), clock)
    at = 0
    for skip, length in looks:
        at = (at + skip) % len(content)
        assert ahead.read(at, at + length) == content[at : at + length]
