"""A real S3-compatible server on this machine, which counts requests and can misbehave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import pytest

from support.moto_server import MotoServer

Fault = Callable[[dict[str, Any]], str | None]

_used: list[tuple[str, bool]] = []


class Store(MotoServer):
    """moto's S3 behind HTTP. `fault` may turn a request into a status such as "403 Forbidden"."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.fault: Fault | None = None
        super().__init__()

    def replaced(self, environ: dict[str, Any]) -> tuple[str, list[tuple[str, str]], bytes] | None:
        self.asked.append((environ["REQUEST_METHOD"], environ.get("HTTP_RANGE", "")))
        status = self.fault(environ) if self.fault else None
        return None if status is None else (status, [], b"")

    def count(self, method: str) -> int:
        return sum(asked == method for asked, _ in self.asked)


@contextmanager
def serving() -> Iterator[Store]:
    """A store for the length of a block. File systems that fsspec keeps for it go with it."""
    store = Store()
    yield store
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    store.stop()


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
