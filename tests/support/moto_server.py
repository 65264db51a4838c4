"""moto's AWS behind HTTP on this machine; each answer can be replaced by another one."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002
        pass


class MotoServer:
    """Serves until `stop`. A subclass says in `replaced` which answers are not moto's."""

    def __init__(self) -> None:
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=_Quiet)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def replaced(self, environ: dict[str, Any]) -> tuple[str, list[tuple[str, str]], bytes] | None:  # noqa: ARG002
        """Status, headers and content of another answer than moto's to a request; None: moto answers."""
        return None

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        other = self.replaced(environ)
        if other is None:
            return self._moto(environ, start_response)  # type: ignore[no-any-return]
        status, headers, content = other
        start_response(status, [*headers, ("Content-Length", str(len(content)))])
        return [content]

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join(timeout=60)
        self._server.server_close()
        assert not self._thread.is_alive()
