"""Whether what listens at an address speaks gRPC, as all servers of Ray do: Ray itself would try for minutes.

gRPC is spoken over HTTP/2 (RFC 9113): whoever connects sends a preface, and the first frame of a server has settings.
"""

import os
import socket
import time
from typing import Final

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # and empty settings
_SETTINGS: Final = 4  # the type of a frame, after three bytes of its length
_ANSWER_SECONDS: Final = 10.0


def why_not_grpc(host: str, port: int, seconds: float = _ANSWER_SECONDS) -> str:
    """What is wrong with the answer, in words that follow the address; empty where it is gRPC's, or is encrypted."""
    if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
        return ""
    try:
        with socket.create_connection((host, port), seconds) as connection:
            connection.sendall(_PREFACE)
            answer = _first_bytes(connection, 4, time.monotonic() + seconds)
    except OSError as error:
        return f"it answers with an error: {error.strerror or error}"
    if len(answer) == 4 and answer[3] == _SETTINGS:
        return ""
    return "what listens there is no server of Ray"


def _first_bytes(connection: socket.socket, count: int, end: float) -> bytes:
    """As many bytes as come until `end`, of the monotonic clock."""
    received = b""
    while len(received) < count and (left := end - time.monotonic()) > 0:
        connection.settimeout(left)
        try:
            part = connection.recv(count - len(received))
        except TimeoutError:
            break
        if not part:
            break
        received += part
    return received
