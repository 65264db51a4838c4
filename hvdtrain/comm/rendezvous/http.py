"""The part of HTTP that Horovod's store client speaks (horovod/common/gloo/http_store.cc), and nothing else.

    GET|PUT|DELETE /TOKEN:PORT/SCOPE/KEY HTTP/1.1     one request a connection; 200, or 404 for a missing key

The client takes the address as it stands in HOROVOD_GLOO_RENDEZVOUS_ADDR and appends `:PORT/SCOPE/KEY`; an address of
`HOST:PORT/TOKEN` therefore makes it send a token, although it knows of none.
"""

from __future__ import annotations

import asyncio
import hmac
import re
from dataclasses import dataclass

from hvdtrain.comm.rendezvous.store import MAX_VALUE_BYTES

LINE_LIMIT = 2048
"""Bytes of the longest line that is read; the longest that Horovod sends has a host name in it, of 255 at most."""

_MAX_HEADERS = 32
_REQUEST = re.compile(rb"(GET|PUT|DELETE) /([^/ ]+)/([^/ ]+)/([^/ ]+) HTTP/1\.[01]\r\n")
_REASONS = {200: "OK", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 413: "Too Large", 507: "Full"}


@dataclass(frozen=True, slots=True)
class Request:
    """One request with its body."""

    method: str
    scope: str
    key: str
    body: bytes


class RefusedError(Exception):
    """A request that is not served.

    Args:
        status: HTTP status that says why.
    """

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


async def read_request(first: bytes, reader: asyncio.StreamReader, token: str) -> Request:
    """The request that begins with the line `first`.

    Raises:
        RefusedError: it is malformed, too large, or does not carry `token`; nothing after that point was read.
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
