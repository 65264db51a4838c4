"""Files of a folder over HTTP with ranges and ETags, as object stores serve them; requests and bytes are counted."""

from __future__ import annotations

import hashlib
import http.server
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class RangeServer:
    """Serves until the block of `serving` ends. `broken`: answers all requests with 503; `tagged`: with an ETag."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.requests, self.bytes, self.broken, self.tagged = folder, 0, 0, False, True
        self.lock = threading.Lock()
        self.url = ""

    def reset(self) -> None:
        self.requests = self.bytes = 0

    def tag_of(self, content: bytes) -> dict[str, str]:
        return {"ETag": f'"{hashlib.md5(content).hexdigest()}"'} if self.tagged else {}


@contextmanager
def serving(folder: Path) -> Iterator[RangeServer]:
    state = RangeServer(folder)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def _answer(self, with_body: bool) -> None:
            path = state.folder / self.path.lstrip("/")
            if state.broken or not path.is_file():
                return self._send(503 if state.broken else 404, b"", {}, with_body)
            content = path.read_bytes()
            headers = {"Accept-Ranges": "bytes", **state.tag_of(content)}
            asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            if asked is None:
                return self._send(200, content, headers, with_body)
            begin, end = int(asked[1]), min(int(asked[2] or len(content)) + 1, len(content))
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(content)}"
            return self._send(206, content[begin:end], headers, with_body)

        def _send(self, status: int, body: bytes, headers: dict[str, str], with_body: bool) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            with state.lock:
                state.requests += 1
                state.bytes += len(body) if with_body else 0
            self.end_headers()
            if with_body:
                self.wfile.write(body)

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    with Server(("127.0.0.1", 0), Handler) as server:
        state.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield state
        server.shutdown()
        thread.join(60)
