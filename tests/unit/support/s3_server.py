"""A real S3-compatible server on this machine, which counts requests and can misbehave."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

Fault = Callable[[dict[str, Any]], str | None]

_used: list[tuple[str, bool]] = []


class Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002
        pass


class Store:
    """moto's S3 behind HTTP. `fault` may turn a request into a status such as "403 Forbidden"."""

    def __init__(self) -> None:
        self._moto = DomainDispatcherApplication(create_backend_app)
        self.asked: list[tuple[str, str]] = []
        self.fault: Fault | None = None
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=Quiet)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Any:
        self.asked.append((environ["REQUEST_METHOD"], environ.get("HTTP_RANGE", "")))
        status = self.fault(environ) if self.fault else None
        if status is not None:
            start_response(status, [("Content-Length", "0")])
            return [b""]
        return self._moto(environ, start_response)

    def count(self, method: str) -> int:
        return sum(asked == method for asked, _ in self.asked)

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join(timeout=60)
        self._server.server_close()
        assert not self._thread.is_alive()


def use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, endpoint: str, keys: bool = True) -> None:
    """An environment in which S3 is `endpoint` and nothing of the real machine's configuration is seen."""
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    settings = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": str(tmp_path / "absent"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "absent"),
        "AWS_EC2_METADATA_DISABLED": "true",
        **({"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "hush-hush"} if keys else {}),
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    if _used != [(endpoint, keys)]:
        # fsspec keeps file systems by their options; the environment is none of them.
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        _used[:] = [(endpoint, keys)]
