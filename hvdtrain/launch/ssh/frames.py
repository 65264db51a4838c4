"""The messages of launcher and agent through ssh: frames of a kind, fields, and bytes.

    frame     = header length (4 bytes, big endian), body length (the same), header, body
    header    = JSON object: "kind", and the fields of that kind
    preamble  = what the agent sends before its first frame: a shell's greeting may stand before it, and is skipped

    agent → launcher   hello, started, output, ended, refused, answer, heartbeat
    launcher → agent   start, signal, kill, read, ask, heartbeat

Nothing here is pickled; a frame that is larger than it may be ends the connection.
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

PREAMBLE = b"\nHVDTRAIN-AGENT-1\n"
MAX_HEADER_BYTES = 2**24  # room for the variables and commands of a host's workers
MAX_BODY_BYTES = 2**20
_MAX_GREETING_BYTES = 2**18  # of a remote shell, before the preamble
_LENGTHS = struct.Struct("!II")


class BrokenFrameError(Exception):
    """The other side talks another protocol; the text says what it sent."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message."""

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)
    body: bytes = b""

    def encode(self) -> bytes:
        header = json.dumps({"kind": self.kind, **self.fields}, separators=(",", ":")).encode()
        return _LENGTHS.pack(len(header), len(self.body)) + header + self.body


class FrameReader:
    """Puts frames together from what arrives, in whatever pieces; if it `skips_greeting`, all after the PREAMBLE."""

    def __init__(self, skips_greeting: bool = False) -> None:
        self._skipping = skips_greeting
        self._buffer = bytearray()
        self.greeting = ""  # what a shell printed before the PREAMBLE

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete now; BrokenFrameError if what arrived is not a frame."""
        self._buffer += data
        if self._skipping and not self._skip_greeting():
            return
        while (frame := self._next()) is not None:
            yield frame

    def _skip_greeting(self) -> bool:
        at = self._buffer.find(PREAMBLE)
        if at < 0:
            if len(self._buffer) > _MAX_GREETING_BYTES:
                raise BrokenFrameError(f"it wrote {bytes(self._buffer[:80])!r} and so on, and no agent answers")
            return False
        self.greeting = self._buffer[:at].decode(errors="replace").strip()
        del self._buffer[: at + len(PREAMBLE)]
        self._skipping = False
        return True

    def _next(self) -> Frame | None:
        if len(self._buffer) < _LENGTHS.size:
            return None
        header_bytes, body_bytes = _LENGTHS.unpack_from(self._buffer)
        if header_bytes > MAX_HEADER_BYTES or body_bytes > MAX_BODY_BYTES:
            raise BrokenFrameError(f"it wrote {bytes(self._buffer[:80])!r}, which is not a frame")
        body_at = _LENGTHS.size + header_bytes
        if len(self._buffer) < body_at + body_bytes:
            return None
        header, body = bytes(self._buffer[_LENGTHS.size : body_at]), bytes(self._buffer[body_at : body_at + body_bytes])
        del self._buffer[: body_at + body_bytes]
        try:
            fields = json.loads(header)
        except (ValueError, RecursionError) as error:
            raise BrokenFrameError(f"it wrote {header[:80]!r}, which is not JSON") from error
        if not isinstance(fields, dict) or not isinstance(fields.get("kind"), str):
            raise BrokenFrameError(f"it wrote {header[:80]!r}, which is not a frame")
        return Frame(fields.pop("kind"), fields, body)
