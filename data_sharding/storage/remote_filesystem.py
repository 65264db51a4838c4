"""fsspec file systems: a time limit on every call, and how often a request is repeated."""

import asyncio
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar, cast
from weakref import WeakValueDictionary

import fsspec
from fsspec.asyn import sync

from data_sharding.background import in_background
from data_sharding.errors import ShardingError
from data_sharding.storage.byte_ranges import Range
from data_sharding.storage.remote_errors import is_transient, missing, no_filesystem, shown_cause, unreadable

T = TypeVar("T")

_CONCURRENT: Final = 32
"""Requests of one call under way at a time."""

_S3_CONFIG: Final = {"connect_timeout": 5, "read_timeout": 15, "retries": {"total_max_attempts": 1}}
"""For botocore: seconds, and no attempts of its own, which would multiply with ours."""

_JITTER: Final = random.SystemRandom()  # of its own: the program's draws stay what its seed made them


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Limits for one operation on a remote store, in seconds."""

    request_s: float = 60.0  # an answer to one request, its body included
    attempts: int = 5  # times that a request is sent before it is given up
    # longest wait before the second attempt; doubles with each. A random share of it is waited, so that workers that
    # were refused together do not come back together.
    pause_s: float = 0.5
    total_s: float = 180.0  # no attempt starts later than this after the first
    # between two questions whether a file is unchanged, where its store does not say that with its bytes
    verify_s: float = 60.0

    def call(self, url: str, ask: Callable[[float], T]) -> T:
        """Call `ask` with a time limit in seconds until it returns, or fails in a way that asking again won't mend.

        Raises FileNotFoundError or MissingDataError.
        """
        begin = time.monotonic()
        for attempt in range(1, self.attempts + 1):
            try:
                return ask(self.request_s)
            except ShardingError:
                raise
            except Exception as error:
                pause = _JITTER.uniform(0.5, 1.0) * self.pause_s * 2 ** (attempt - 1)
                waited = time.monotonic() - begin
                if not is_transient(error) or attempt == self.attempts or waited + pause > self.total_s:
                    raise unreadable(url, error, attempt, waited) from shown_cause(url, error)
            time.sleep(pause)
        raise ValueError(f"{self.attempts} attempts are too few to ask once")


RETRY: Final = RetryPolicy()

_opened: Final[WeakValueDictionary[int, Any]] = WeakValueDictionary()
_of_parent: Final[list[Any]] = []


def _keep_those_of_the_parent() -> None:
    """In a forked child (a worker of torch's DataLoader), keep the parent's file systems, which it does not use.

    fsspec forgets them there. When Python then frees one, its connections are closed, and with them their places in the
    epoll object that the child shares with its parent: the parent would wait for its next answer until the time limit.
    """
    _of_parent.extend(_opened.values())


os.register_at_fork(after_in_child=_keep_those_of_the_parent)


class Answer(NamedTuple):
    """Bytes, and the version of the object that they are from where the store says it with them."""

    data: bytes
    version: str | None


def open_filesystem(url: str, retry: RetryPolicy) -> tuple[Any, str]:
    """The file system of a URL, and the URL's path in it. Credentials and endpoints are fsspec's own business.

    Raises MissingDataError (the protocol is unknown, its package is not installed, or its host cannot be reached).
    """
    try:
        fs, path = retry.call(url, lambda limit_s: _connect(url, limit_s))
    except FileNotFoundError as error:
        raise missing(url) from error
    if is_s3(fs):
        fs.retries = 1
    _opened[id(fs)] = fs
    return fs, path


def _connect(url: str, limit_s: float) -> tuple[Any, str]:
    options: dict[str, Any] = {}
    if url.startswith(("s3://", "s3a://")):
        configured = fsspec.config.conf.get("s3", {}).get("config_kwargs", {})
        # A listing that is remembered would hide that a file has changed.
        options = {"config_kwargs": {**_S3_CONFIG, **configured}, "use_listings_cache": False}
    try:
        outermost = fsspec.get_filesystem_class(url.partition("::")[0].partition("://")[0])
        if outermost.async_impl:
            return cast(tuple[Any, str], fsspec.core.url_to_fs(url, **options))
        # Some log in at once: FTP, SFTP.
        return cast(tuple[Any, str], in_background(lambda: fsspec.core.url_to_fs(url, **options)).result(limit_s))
    except (ImportError, ValueError) as error:
        raise no_filesystem(url, error) from shown_cause(url, error)


def is_s3(fs: Any) -> bool:
    """Whether it is s3fs, whose answers carry the ETag."""
    return any(kind.__module__ == "s3fs.core" for kind in type(fs).__mro__)


def _is_http(fs: Any) -> bool:
    """Whether it is fsspec's own for http:// and https://, and not one that reads in another way."""
    return type(fs).__module__ == "fsspec.implementations.http"


def call(fs: Any, method: str, *args: Any, limit_s: float, **options: Any) -> Any:
    """Call a method of a file system. Raises TimeoutError after `limit_s` seconds, and what the file system does."""
    if fs.async_impl:
        return getattr(fs, method)(*args, **options, timeout=limit_s)
    return in_background(lambda: getattr(fs, method)(*args, **options)).result(limit_s)


def fetch(fs: Any, path: str, ranges: Sequence[Range], limit_s: float) -> list[Answer | Exception]:
    """The bytes of each range, or why there are none: all asked for at the same time, `limit_s` seconds for each."""
    if fs.async_impl:
        return cast(list[Answer | Exception], sync(fs.loop, _fetch_async, fs, path, ranges, limit_s))
    answers: list[Answer | Exception] = []
    for begin, end in ranges:
        try:
            answers.append(Answer(call(fs, "cat_file", path, begin, end, limit_s=limit_s), None))
        except Exception as error:
            answers.append(error)
    return answers


async def _fetch_async(fs: Any, path: str, ranges: Sequence[Range], limit_s: float) -> list[Answer | BaseException]:
    turns = asyncio.Semaphore(_CONCURRENT)

    async def ask(begin: int, end: int) -> Answer:
        async with turns:
            return await asyncio.wait_for(_ask(fs, path, begin, end), limit_s)

    return await asyncio.gather(*(ask(begin, end) for begin, end in ranges), return_exceptions=True)


async def _ask(fs: Any, path: str, begin: int, end: int) -> Answer:
    if is_s3(fs):
        return await _ask_s3(fs, path, begin, end)
    if _is_http(fs):
        return await _ask_http(fs, path, begin, end)
    return Answer(await fs._cat_file(path, start=begin, end=end), None)


async def _ask_s3(fs: Any, path: str, begin: int, end: int) -> Answer:
    """As s3fs's own `_cat_file`, which does not hand out the answer's ETag."""
    bucket, key, _ = fs.split_path(path)
    answer = await fs._call_s3("get_object", Bucket=bucket, Key=key, Range=f"bytes={begin}-{end - 1}")
    async with answer["Body"] as body:
        return Answer(await body.read(), answer.get("ETag"))


async def _ask_http(fs: Any, url: str, begin: int, end: int) -> Answer:
    """As fsspec's own `_cat_file`, which does not hand out the answer's headers."""
    session = await fs.set_session()
    # Bytes that the server compresses for the way have an ETag of their own.
    headers = {"Accept-Encoding": "identity", **fs.kwargs.get("headers", {}), "Range": f"bytes={begin}-{end - 1}"}
    async with session.get(fs.encode_url(url), **{**fs.kwargs, "headers": headers}) as answer:
        answer.raise_for_status()
        tag = answer.headers.get("ETag", "").removeprefix("W/")  # said of the same bytes by some servers of a site
        return Answer(await answer.read(), tag or answer.headers.get("Last-Modified"))
