"""A store over HTTP with a latency and a bandwidth of its own, which counts: stands for S3 on one machine.

    python -m benchmarks.remote.slow_server FOLDER LATENCY_MS MBIT

It prints its port. Each request waits for the latency before its first byte; all answers share the bandwidth. Neither
TCP's slow start nor the cost of a connection is modelled. `GET /-/count` gives requests and bytes since the last one.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Final
from urllib.parse import unquote

_CHUNK: Final = 64 << 10


class SlowStore:
    """The files of a folder; `latency_s` seconds before each answer, `rate` bytes a second for all together."""

    def __init__(self, folder: Path, latency_s: float, rate: float) -> None:
        self._folder, self._latency_s, self._rate = folder, latency_s, rate
        self._free_at = 0.0
        self._requests = self._bytes = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection's requests, one after the other."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await self._answer(head.decode("latin-1"), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, head: str, writer: asyncio.StreamWriter) -> None:
        method, target = head.split(" ", 2)[:2]
        if target == "/-/count":
            body = json.dumps({"requests": self._requests, "bytes": self._bytes}).encode()
            self._requests = self._bytes = 0
            await self._send(writer, "200 OK", {}, body)
            return
        due = asyncio.get_running_loop().time() + self._latency_s
        self._requests += 1
        path = self._folder / unquote(target).lstrip("/")
        status, headers, begin, end = _choose(path, head)
        await asyncio.sleep(due - asyncio.get_running_loop().time())
        if method == "HEAD" or not path.is_file():
            await self._send(writer, status, headers | {"Content-Length": str(end - begin)}, b"")
            return
        writer.write(_head(status, headers | {"Content-Length": str(end - begin)}))
        with open(path, "rb") as file:
            file.seek(begin)
            for at in range(begin, end, _CHUNK):
                await self._send_chunk(writer, file.read(min(_CHUNK, end - at)))

    async def _send_chunk(self, writer: asyncio.StreamWriter, chunk: bytes) -> None:
        loop = asyncio.get_running_loop()
        self._free_at = max(self._free_at, loop.time()) + len(chunk) / self._rate
        if (wait := self._free_at - loop.time()) > 1e-3:
            await asyncio.sleep(wait)
        self._bytes += len(chunk)
        writer.write(chunk)
        await writer.drain()

    async def _send(self, writer: asyncio.StreamWriter, status: str, headers: dict[str, str], body: bytes) -> None:
        writer.write(_head(status, {"Content-Length": str(len(body))} | headers) + body)
        await writer.drain()


def _choose(path: Path, head: str) -> tuple[str, dict[str, str], int, int]:
    """Status, headers, first byte and the byte behind the last one."""
    if not path.is_file():
        return "404 Not Found", {}, 0, 0
    about = path.stat()
    headers = {"ETag": f'"{about.st_mtime_ns:x}-{about.st_size:x}"', "Accept-Ranges": "bytes"}
    asked = re.search(r"^range: bytes=(\d+)-(\d*)\r", head, re.IGNORECASE | re.MULTILINE)
    if asked is None:
        return "200 OK", headers, 0, about.st_size
    begin, end = int(asked[1]), min(int(asked[2] or about.st_size) + 1, about.st_size)
    return "206 Partial Content", headers | {"Content-Range": f"bytes {begin}-{end - 1}/{about.st_size}"}, begin, end


def _head(status: str, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _serve(folder: str, latency_ms: str, mbit: str) -> None:
    store = SlowStore(Path(folder), float(latency_ms) / 1e3, float(mbit) * 1e6 / 8)
    server = await asyncio.start_server(store.serve, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))
