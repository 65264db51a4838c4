"""A folder behind a URL that fsspec can write, such as s3://bucket/run: what a mirror of a run needs of it.

Every request has a time limit and is repeated where that may help (`RetryPolicy`). On S3, a file is there
completely or not at all, and a pointer is replaced only if nobody else has replaced it since.
"""

import logging
import posixpath
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar

from data_sharding.errors import ShardingError
from data_sharding.storage.redaction import redacted, without_secrets
from data_sharding.storage.remote_filesystem import RETRY, RetryPolicy, call, is_s3, open_filesystem
from hvdtrain.checkpoints.format import CHECKPOINT_FILE, Checkpoint, DamagedCheckpointError, read_checkpoint
from hvdtrain.checkpoints.resume import POINTERS
from hvdtrain.checkpoints.store import CHECKPOINT_NAME, newest_first
from hvdtrain.errors import UsageError

T = TypeVar("T")

_SLOWEST: Final = 1e6  # bytes a second: a transfer may take so long, and a request's time besides
MANIFEST: Final = "manifest.json"
LATEST: Final = "checkpoints/latest"
_log = logging.getLogger(__name__)


class RemoteError(OSError):
    """A folder behind a URL could not be read or written."""


@dataclass(frozen=True)
class Version:
    """Of a small file, to be compared before it is replaced. None: it is not there."""

    etag: str | None


class RemoteFolder:
    """A folder behind `url`, which need not be there yet. Raises UsageError: there is no file system for the URL, or it
    cannot be reached."""

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
        paths = self._ask_if_there(folder, "ls", [], detail=False)
        return sorted(posixpath.basename(path.rstrip("/")) for path in paths)

    def sizes(self, folder: str) -> dict[str, int]:
        """File → bytes, of the files directly in `folder`."""
        entries = self._ask_if_there(folder, "ls", [], detail=True)
        return {posixpath.basename(entry["name"]): int(entry["size"]) for entry in entries if entry["type"] == "file"}

    def read(self, name: str) -> bytes | None:
        """A small file's content; None where it is not there."""
        content = self._ask_if_there(name, "cat_file", None)
        return None if content is None else bytes(content)

    def version(self, name: str) -> Version:
        """What is there now; on stores other than S3 nothing is known of it."""
        return Version(self._ask_if_there(name, "info", {}).get("ETag"))

    def replace(self, name: str, content: bytes, expected: Version | None = None) -> Version:
        """Write a small file. `expected`: what must be there before; on S3 only, where the store compares and replaces
        in one step. Raises RemoteError: it could not be written, or something else is there."""

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
        self._ask(name, "get_file", str(file), size=size)

    def remove(self, name: str) -> None:
        """Remove a file, or a folder and all that is in it, if it is there. Raises RemoteError."""
        self._ask_if_there(name, "rm", None, recursive=True)
        self._made.clear()

    def _make_folder_of(self, name: str, limit_s: float) -> None:
        """Where a store has folders: a disk, or a server that shares one. S3 has none."""
        folder = posixpath.dirname(self._inside(name))
        if not is_s3(self._fs) and folder not in self._made:
            call(self._fs, "makedirs", folder, exist_ok=True, limit_s=limit_s)
            self._made.add(folder)

    def _inside(self, name: str) -> str:
        return posixpath.join(self._path, name) if name else self._path

    def _ask_if_there(self, name: str, method: str, missing: Any, **options: bool) -> Any:
        try:
            return self._ask(name, method, **options)
        except FileNotFoundError:
            return missing

    def _ask(self, name: str, method: str, *arguments: str, size: int = 0, **options: bool) -> Any:
        """Call a method of the file system, which may have remembered an older answer."""

        def ask(limit_s: float) -> Any:
            self._fs.invalidate_cache()
            return call(self._fs, method, self._inside(name), *arguments, limit_s=limit_s, **options)

        return self._try(name, ask, size)

    def _try(self, name: str, ask: Callable[[float], T], size: int = 0) -> T:
        retry = self._retry
        if size:
            request_s = retry.request_s + size / _SLOWEST
            retry = replace(retry, request_s=request_s, total_s=max(retry.total_s, retry.attempts * request_s))
        try:
            return retry.call(posixpath.join(self._raw, name), ask)
        except ShardingError as error:
            cause = error.__cause__
            what = f"{type(cause).__name__}: {cause}" if cause is not None else error.conflict
            if "PreconditionFailed" in what or "pre-conditions" in what:
                what = "another job has written to it meanwhile"
            where = posixpath.join(self.url, name)
            raise RemoteError(f"{where}: {without_secrets(what, self._raw).rstrip('.')}") from error


class RemoteRun:
    """The run behind `folder`."""

    def __init__(self, folder: RemoteFolder) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        """Of its checkpoints, the oldest first."""
        return [name for name in self._folder.names("checkpoints") if CHECKPOINT_NAME.fullmatch(name)]

    def names_newest_first(self) -> list[str]:
        """As `newest_first`."""
        return newest_first(self.names(), self.pointed("latest"))

    def pointed(self, pointer: str) -> str:
        """The name that `latest` or `best` holds; "" where there is none."""
        return (self._folder.read(f"checkpoints/{pointer}") or b"").decode(errors="replace").strip()

    def bring(self, name: str, target: Path, arrays: bool = True) -> None:
        """Copy a checkpoint's files into the folder `target`, as they are; without `arrays` its manifest alone. Raises
        OSError: it cannot be read."""
        target.mkdir(parents=True, exist_ok=True)
        for file, size in self._folder.sizes(f"checkpoints/{name}").items():
            if file == MANIFEST or (arrays and CHECKPOINT_FILE.fullmatch(file)):
                self._folder.download(f"checkpoints/{name}/{file}", target / file, size)

    def size(self, name: str) -> int:
        """Bytes of a checkpoint's files."""
        return sum(self._folder.sizes(f"checkpoints/{name}").values())


def run_at(url: str) -> tuple[RemoteRun, str]:
    """The run that a URL names, and which of its checkpoints; "" where it names none. `url`: of a run's folder, its
    folder checkpoints, or one of these by its name or a pointer. Raises UsageError: it cannot be used."""
    parent, _, last = url.rstrip("/").rpartition("/")
    if CHECKPOINT_NAME.fullmatch(last) or last in POINTERS:
        run = RemoteRun(RemoteFolder(parent.removesuffix("/checkpoints")))
        name = run.pointed(last) if last in POINTERS else last
        if not CHECKPOINT_NAME.fullmatch(name):
            raise UsageError(
                f"{redacted(url)} names no checkpoint.", "Another one is not taken instead.", "check the URL."
            )
        return run, name
    return RemoteRun(RemoteFolder(url.rstrip("/").removesuffix("/checkpoints"))), ""


def checkpoint_behind(url: str, given_as: str) -> Checkpoint:
    """The newest sound checkpoint of the run behind a URL, or the one that the URL names. `given_as`: by which option,
    for messages. Raises UsageError: it cannot be read, or there is no sound one."""
    shown = redacted(url)
    try:
        run, named = run_at(url)
        for name in [named] if named else run.names_newest_first():
            with TemporaryDirectory(prefix="hvdtrain-checkpoint-") as scratch:
                run.bring(name, Path(scratch, name))
                try:
                    return read_checkpoint(Path(scratch, name))
                except DamagedCheckpointError as error:
                    _log.warning("a checkpoint of %s cannot be used: %s", shown, error)
    except OSError as error:
        raise UsageError(
            f"The checkpoint cannot be read: {error}.", f"It was given as {given_as}.", "check the URL and credentials."
        ) from error
    raise UsageError(f"{shown} holds no sound checkpoint.", f"It was given as {given_as}.", "check the URL.")
