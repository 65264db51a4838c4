"""A folder behind a URL that fsspec can write, such as s3://bucket/run: what a mirror of a run needs of it.

Every request has a time limit and is repeated where that may help (`RetryPolicy`). On S3, large files go
in parts (multipart), a file is there completely or not at all, and a pointer is replaced only if nobody else has
replaced it since.
"""

import posixpath
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from data_sharding.errors import ShardingError
from data_sharding.storage.redaction import redacted, without_secrets
from data_sharding.storage.remote_filesystem import RETRY, RetryPolicy, call, is_s3, open_filesystem
from hvdtrain.errors import UsageError

T = TypeVar("T")

_SLOWEST: Final = 1e6  # bytes a second: a transfer may take so long, and a request's time besides


class RemoteError(OSError):
    """A folder behind a URL could not be read or written."""


@dataclass(frozen=True)
class Version:
    """Of a small file: what to compare with before it is replaced. None: it is not there."""

    etag: str | None


class RemoteFolder:
    """A folder behind `url`, which need not be there yet.

    Raises:
        UsageError: there is no file system for the URL, or it cannot be reached.
    """

    def __init__(self, url: str, retry: RetryPolicy = RETRY) -> None:
        self.url = redacted(url)
        self._raw, self._retry = url.rstrip("/"), retry
        self._made: set[str] = set()
        try:
            self._fs, self._path = open_filesystem(self._raw, retry)
        except ShardingError as error:
            raise UsageError(error.fact, error.conflict, error.hint) from error

    def names(self, folder: str = "") -> list[str]:
        """What is directly in `folder`, in order; nothing where it is not there."""

        def ask(limit_s: float) -> list[str]:
            self._fs.invalidate_cache()
            return list(call(self._fs, "ls", self._inside(folder), detail=False, limit_s=limit_s))

        try:
            return sorted(posixpath.basename(path.rstrip("/")) for path in self._try(folder, ask))
        except FileNotFoundError:
            return []

    def sizes(self, folder: str) -> dict[str, int]:
        """File → bytes, of the files directly in `folder`."""

        def ask(limit_s: float) -> list[dict[str, Any]]:
            self._fs.invalidate_cache()
            return list(call(self._fs, "ls", self._inside(folder), detail=True, limit_s=limit_s))

        try:
            found = self._try(folder, ask)
        except FileNotFoundError:
            return {}
        return {posixpath.basename(one["name"]): int(one["size"]) for one in found if one["type"] == "file"}

    def read(self, name: str) -> bytes | None:
        """A small file's content; None where it is not there."""

        def ask(limit_s: float) -> bytes:
            return bytes(call(self._fs, "cat_file", self._inside(name), limit_s=limit_s))

        try:
            return self._try(name, ask)
        except FileNotFoundError:
            return None

    def version(self, name: str) -> Version:
        """What is there now; on stores other than S3 nothing is known of it."""

        def ask(limit_s: float) -> dict[str, Any]:
            self._fs.invalidate_cache()
            return dict(call(self._fs, "info", self._inside(name), limit_s=limit_s))

        try:
            return Version(self._try(name, ask).get("ETag"))
        except FileNotFoundError:
            return Version(None)

    def replace(self, name: str, content: bytes, expected: Version | None = None) -> Version:
        """Write a small file.

        Args:
            expected: what must be there before; on S3 only, where the store compares and replaces in one step.

        Raises:
            RemoteError: it could not be written, or something else is there.
        """

        def ask(limit_s: float) -> Version:
            if not is_s3(self._fs):
                self._make_folder_of(name, limit_s)
                call(self._fs, "pipe_file", self._inside(name), content, limit_s=limit_s)
                return Version(None)
            condition = (
                {} if expected is None else {"IfMatch": expected.etag} if expected.etag else {"IfNoneMatch": "*"}
            )
            bucket, key, _ = self._fs.split_path(self._inside(name))
            answer = self._fs.call_s3("put_object", Bucket=bucket, Key=key, Body=content, **condition)
            return Version(answer["ETag"])

        return self._try(name, ask)

    def upload(self, file: Path, name: str) -> None:
        """Write a file of any size. Raises RemoteError."""

        def ask(limit_s: float) -> None:
            self._make_folder_of(name, limit_s)
            call(self._fs, "put_file", str(file), self._inside(name), limit_s=limit_s)

        self._try(name, ask, file.stat().st_size)

    def download(self, name: str, file: Path, size: int) -> None:
        """Read a file of `size` bytes. Raises RemoteError; FileNotFoundError (it is not there)."""
        self._try(
            name, lambda limit_s: call(self._fs, "get_file", self._inside(name), str(file), limit_s=limit_s), size
        )

    def remove(self, name: str) -> None:
        """Remove a file, or a folder and all that is in it, if it is there. Raises RemoteError."""

        def ask(limit_s: float) -> None:
            self._fs.invalidate_cache()
            call(self._fs, "rm", self._inside(name), recursive=True, limit_s=limit_s)

        with suppress(FileNotFoundError):
            self._try(name, ask)
        self._made.clear()

    def _make_folder_of(self, name: str, limit_s: float) -> None:
        """Where a store has folders: a disk, or a server that shares one. S3 has none."""
        folder = posixpath.dirname(self._inside(name))
        if not is_s3(self._fs) and folder not in self._made:
            call(self._fs, "makedirs", folder, exist_ok=True, limit_s=limit_s)
            self._made.add(folder)

    def _inside(self, name: str) -> str:
        return posixpath.join(self._path, name) if name else self._path

    def _try(self, name: str, ask: Callable[[float], T], size: int = 0) -> T:
        retry = self._retry
        if size:
            request_s = retry.request_s + size / _SLOWEST
            retry = replace(retry, request_s=request_s, total_s=max(retry.total_s, retry.attempts * request_s))
        try:
            return retry.call(posixpath.join(self._raw, name), ask)
        except ShardingError as error:
            self._fail(name, error)

    def _fail(self, name: str, error: ShardingError) -> NoReturn:
        cause = error.__cause__
        what = f"{type(cause).__name__}: {cause}" if cause is not None else error.conflict
        if "PreconditionFailed" in what or "pre-conditions" in what:
            what = "another job has written to it meanwhile"
        where = posixpath.join(self.url, name)
        raise RemoteError(f"{where}: {without_secrets(what, self._raw).rstrip('.')}") from error
