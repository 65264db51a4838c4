"""Horovod's key-value store: what ranks exchange before they are connected, and its HTTP.

Gloo's full mesh (gloo/rendezvous/context.cc) has every rank put `rank_N`, then read those of lower ranks; put `N`, its
addresses, then read everybody's; and delete `N` when it is connected to all. Each rank puts its own key of a family
before it reads another's, so a reader can be kept waiting until the family is complete.

    GET|PUT|DELETE /TOKEN:PORT/SCOPE/KEY HTTP/1.1     one request a connection; 200, or 404 for a missing key

That is all that Horovod's client uses (horovod/common/gloo/http_store.cc). It appends `:PORT/SCOPE/KEY` to the address
in HOROVOD_GLOO_RENDEZVOUS_ADDR; an address of `HOST:PORT/TOKEN` therefore makes it send a token.
"""

import asyncio
import hmac
import re
from dataclasses import dataclass

GLOBAL_SCOPE = "global"
"""Horovod's scope of all ranks (HOROVOD_GLOO_GLOBAL_PREFIX); others are `local_HOST` and `cross_LOCALRANK`."""

MAX_VALUE_BYTES = 2**22  # A rank's addresses are some 150 bytes for each other rank: room for more than 20,000 ranks

_MAX_TOTAL_BYTES = 2**28
_NUMBERED = re.compile(r"(rank_)?(0|[1-9]\d{0,6})", re.ASCII)

LINE_LIMIT = 2048
"""Bytes of the longest line that is read; the longest that Horovod sends has a host name in it, of 255 at most."""

_MAX_HEADERS = 32
_REQUEST = re.compile(rb"(GET|PUT|DELETE) /([^/ ]+)/([^/ ]+)/([^/ ]+) HTTP/1\.[01]\r\n")
_REASONS = {200: "OK", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 413: "Too Large", 507: "Full"}


class RefusedError(Exception):
    """A request that is not served; `status` is the HTTP status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class RendezvousStore:
    """Values of one job of `size` ranks. Not thread-safe: one event loop owns it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: dict[tuple[str, str], bytes] = {}
        self._bytes = 0
        self._max_keys = 64 + 16 * size  # three scopes with two keys a rank, and room for process sets
        # The ranks whose keys of all ranks' scope are there, by what stands before the number.
        self._there: dict[str, set[int]] = {"": set(), "rank_": set()}
        self.connected: set[int] = set()  # ranks that are connected to all others; it only grows

    def put(self, scope: str, key: str, value: bytes) -> bool:
        """Keep `value`; whether readers may go on that `must_wait`. RefusedError if the store holds more than any job
        of this size has."""
        grown = self._bytes + len(value) - len(self._values.get((scope, key), b""))
        if grown > _MAX_TOTAL_BYTES or (len(self._values) >= self._max_keys and (scope, key) not in self._values):
            raise RefusedError(507)
        self._values[scope, key] = value
        self._bytes = grown
        family, rank = self._family(scope, key)
        if family is None or rank in family:
            return False
        family.add(rank)
        return len(family) == self._size

    def get(self, scope: str, key: str) -> bytes | None:
        return self._values.get((scope, key))

    def delete(self, scope: str, key: str) -> None:
        """Forget `key`; where it is a rank's number, that rank is connected and needs its `rank_N` no more either."""
        number = _NUMBERED.fullmatch(key)
        doomed = (key, f"rank_{key}") if number else (key,)
        for name in doomed:
            self._bytes -= len(self._values.pop((scope, name), b""))
            family, rank = self._family(scope, name)
            if family is not None:
                family.discard(rank)
        if number and not number[1] and scope == GLOBAL_SCOPE:
            self.connected.add(int(number[2]))

    def arrived(self) -> set[int]:
        return self._there["rank_"] | self.connected

    def must_wait(self, scope: str, key: str) -> bool:
        """Whether a reader of `key` should be kept waiting for ranks that have not put theirs yet. Otherwise Horovod
        fails 30 s after the first rank has arrived (HOROVOD_GLOO_TIMEOUT_SECONDS), and names no rank."""
        family, _ = self._family(scope, key)
        return family is not None and len(family) < self._size

    def _family(self, scope: str, key: str) -> tuple[set[int] | None, int]:
        """The ranks that have put a key like this one, and whose key it is; None where there is no such rank."""
        number = _NUMBERED.fullmatch(key)
        if scope != GLOBAL_SCOPE or not number or int(number[2]) >= self._size:
            return None, 0
        return self._there[number[1] or ""], int(number[2])


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    scope: str
    key: str
    body: bytes


async def read_request(first: bytes, reader: asyncio.StreamReader, token: str) -> Request:
    """The request that begins with the line `first`.

    Raises RefusedError: it is malformed, too large, or does not carry `token`; nothing after that point was read.
    asyncio.IncompleteReadError, ValueError: the connection ended early, or a line is longer than LINE_LIMIT.
    """
    match = _REQUEST.fullmatch(first)
    if match is None:
        raise RefusedError(400)
    if not hmac.compare_digest(match[2].partition(b":")[0], token.encode()):
        raise RefusedError(403)
    length = await _content_length(reader)
    if length > MAX_VALUE_BYTES:
        raise RefusedError(413)
    body = await reader.readexactly(length)
    return Request(match[1].decode(), match[3].decode("latin-1"), match[4].decode("latin-1"), body)


async def _content_length(reader: asyncio.StreamReader) -> int:
    length = 0
    for _ in range(_MAX_HEADERS):
        line = await reader.readuntil(b"\r\n")
        if line == b"\r\n":
            return length
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            digits = value.strip()
            if not digits.isdigit() or len(digits) > 12:
                raise RefusedError(400)
            length = int(digits)
    raise RefusedError(400)


def response(status: int, body: bytes = b"") -> bytes:
    """An answer as the client reads it: until the connection closes, or Content-Length is reached."""
    return f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
