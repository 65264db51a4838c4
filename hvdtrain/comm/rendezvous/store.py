"""What ranks tell each other before they are connected: keys and values, and who has arrived.

Gloo's full mesh (gloo/rendezvous/context.cc) has every rank put `rank_N`, then read those of lower ranks; put `N`, its
addresses, then read everybody's; and delete `N` when it is connected to all. Each rank puts its own key of a family
before it reads another's, so a reader can be kept waiting until the whole family is there.
"""

from __future__ import annotations

import re

GLOBAL_SCOPE = "global"
"""Horovod's scope of all ranks (HOROVOD_GLOO_GLOBAL_PREFIX); others are `local_HOST` and `cross_LOCALRANK`."""

MAX_VALUE_BYTES = 2**22
"""A rank's addresses are some 150 bytes for each other rank: room for more than 20,000 ranks."""

_MAX_TOTAL_BYTES = 2**28
_NUMBERED = re.compile(r"(rank_)?(\d{1,7})", re.ASCII)


class StoreFullError(Exception):
    """More keys or bytes than any job of this size has."""


class RendezvousStore:
    """Values of one job of `size` ranks. Not thread-safe: one event loop owns it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: dict[tuple[str, str], bytes] = {}
        self._bytes = 0
        self._max_keys = 64 + 16 * size  # three scopes with two keys a rank, and room for process sets
        self.connected: set[int] = set()
        """Ranks that are connected to all others."""

    def put(self, scope: str, key: str, value: bytes) -> None:
        """Keep `value`.

        Raises:
            StoreFullError: the store holds as much as it may.
        """
        grown = self._bytes + len(value) - len(self._values.get((scope, key), b""))
        if grown > _MAX_TOTAL_BYTES or (len(self._values) >= self._max_keys and (scope, key) not in self._values):
            raise StoreFullError
        self._values[scope, key] = value
        self._bytes = grown

    def get(self, scope: str, key: str) -> bytes | None:
        """The value, or None."""
        return self._values.get((scope, key))

    def delete(self, scope: str, key: str) -> None:
        """Forget `key`; where it is a rank's number, that rank is connected and needs its `rank_N` no more either."""
        number = _NUMBERED.fullmatch(key)
        doomed = (key, f"rank_{key}") if number else (key,)
        for name in doomed:
            self._bytes -= len(self._values.pop((scope, name), b""))
        if number and not number[1] and scope == GLOBAL_SCOPE:
            self.connected.add(int(number[2]))

    def arrived(self) -> set[int]:
        """Ranks that have begun to connect."""
        waiting = {rank for rank in range(self._size) if (GLOBAL_SCOPE, f"rank_{rank}") in self._values}
        return waiting | self.connected

    def must_wait(self, scope: str, key: str) -> bool:
        """Whether a reader of `key` should be kept waiting for ranks that have not put theirs yet.

        Without that, Horovod gives up 30 s after the first rank came (HOROVOD_GLOO_TIMEOUT_SECONDS), naming nobody.
        """
        number = _NUMBERED.fullmatch(key)
        if scope != GLOBAL_SCOPE or not number or int(number[2]) >= self._size:
            return False
        prefix = number[1] or ""
        return any((scope, f"{prefix}{rank}") not in self._values for rank in range(self._size))
