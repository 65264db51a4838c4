"""Spans of several files in one go."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from data_sharding.storage.interface import ByteSource

_THREADS: Final = 32


class SpanRequest(NamedTuple):
    """Bytes [begins[i], ends[i]) of one file, for each i."""

    source: ByteSource
    begins: Sequence[int]
    ends: Sequence[int]

    def read(self) -> list[bytes]:
        """The bytes of each span."""
        return self.source.spans(self.begins, self.ends)


def read_spans(requests: Sequence[SpanRequest], concurrently: bool) -> list[bytes]:
    """The bytes of all spans of all requests, in order.

    Args:
        concurrently: ask all files at the same time, which is for remote ones: a shuffled batch has records of as many
            files as it has records, and would wait for one answer after the other.

    Raises:
        ShardingError: as `ByteSource.spans`; of several failures the one of the first request.
    """
    if not concurrently or len(requests) < 2:
        return [span for request in requests for span in request.read()]
    with ThreadPoolExecutor(min(_THREADS, len(requests)), thread_name_prefix="data_sharding-spans") as pool:
        return [span for spans in pool.map(SpanRequest.read, requests) for span in spans]
