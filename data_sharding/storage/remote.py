"""Files behind a URL that fsspec reads, s3://, gs://, http:// and the like: found by file, folder or glob, and read."""

import glob
import io
import logging
import os
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, BinaryIO, Final, cast

from data_sharding.background import in_background
from data_sharding.errors import ChangedDataError, MissingDataError
from data_sharding.storage import byte_ranges
from data_sharding.storage.byte_source import SourceFile
from data_sharding.storage.file_entry import INDEX_NAME, FileEntry, is_data, matches, no_match, no_such_files
from data_sharding.storage.redaction import redacted
from data_sharding.storage.remote_errors import ShortAnswerError, Trouble, missing, trouble_of
from data_sharding.storage.remote_filesystem import RETRY, Answer, RetryPolicy, call, fetch, is_s3, open_filesystem

_VERSIONS: Final = (
    "ETag generation etag md5Hash content_md5 Content-MD5 LastModified Last-Modified last_modified mtime updated "
    "modified created"
)
"""What file systems call that which changes when the content does, the best first. Google's etag changes with its
metadata, too."""

_log = logging.getLogger(__name__)


class RemoteSource:
    """`ByteSource` over ranges asked for by request. Survives a fork: the child opens connections of its own.

    Every answer of S3 names the version that it is from, which is compared with the one that was indexed. Other stores
    are asked for that after the first read, so that many files can be opened without a wait for each. Later answers of
    HTTP servers are compared with the first; a store whose answers name no version is asked now and then.
    """

    def __init__(self, entry: FileEntry, retry: RetryPolicy = RETRY) -> None:
        self._entry = entry
        self._retry = retry
        self._ahead = byte_ranges.ReadAhead(self._read, entry.size)
        self._asked_again: Future[None] | None = None
        self._connect()
        # Where it is unknown, the first answer's is taken: HTTP servers may name another when asked for the file.
        self._version = entry.version if is_s3(self._fs) else None
        self._verified_at = time.monotonic() if is_s3(self._fs) else None

    def size(self) -> int:
        return self._entry.size

    def __getitem__(self, span: slice) -> bytes:
        begin = span.start or 0
        return self._ahead.read(begin, self._entry.size if span.stop is None else span.stop)

    def spans(self, begins: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        ends = [min(end, self._entry.size) for end in ends]
        merged = byte_ranges.merge(begins, ends, byte_ranges.GAP)
        whole = list(zip(merged.begins.tolist(), merged.ends.tolist(), strict=True))
        return byte_ranges.cut(merged, self._read_all(whole), begins, ends)

    def file(self) -> BinaryIO:
        ahead = byte_ranges.ReadAhead(self._read, self._entry.size)
        return cast(BinaryIO, io.BufferedReader(SourceFile(ahead.read, self._entry.size, redacted(self._entry.path))))

    def verify(self) -> None:
        """Raise ChangedDataError unless the store still has the file that was indexed."""
        begin = time.monotonic()
        try:
            now = _describe(self._filesystem(), self._path, self._entry.path, self._retry)
        except FileNotFoundError as error:
            raise self._entry.changed("has gone since it was indexed") from error
        self._entry.verify_same(now)
        self._verified_at = begin

    def _read(self, begin: int, end: int) -> bytes:
        return self._read_all([(begin, end)])[0]

    def _read_all(self, ranges: list[byte_ranges.Range]) -> list[bytes]:
        parts = [byte_ranges.split(begin, end, byte_ranges.LONGEST) for begin, end in ranges]
        content = self._fetch([part for split in parts for part in split])
        return [content[split[0]] if len(split) == 1 else b"".join(map(content.__getitem__, split)) for split in parts]

    def _fetch(self, ranges: list[byte_ranges.Range]) -> dict[byte_ranges.Range, bytes]:
        content: dict[byte_ranges.Range, bytes] = {}

        def ask(limit_s: float) -> None:
            wanted = [part for part in ranges if part not in content]
            answers = fetch(self._filesystem(), self._path, wanted, limit_s)
            failures = []
            for part, answer in zip(wanted, answers, strict=True):
                try:
                    content[part] = self._checked(part, answer)
                except Exception as error:
                    failures.append(error)
            # One that asking again won't mend is a ChangedDataError or worse, and explains the others.
            if failures:
                raise next((error for error in failures if isinstance(error, ChangedDataError)), failures[0])

        if ranges:
            try:
                self._retry.call(self._entry.path, ask)
            except FileNotFoundError as error:
                raise self._entry.changed("has gone since it was indexed") from error
            self._verify_what_came()
        return content

    def _verify_what_came(self) -> None:
        """Ask the store after the first read; later on only where its answers name no version, and without a wait."""
        if self._verified_at is None:
            self.verify()
        elif self._version is None:
            self._verify_now_and_then(time.monotonic() - self._verified_at)

    def _verify_now_and_then(self, seconds: float) -> None:
        """Ask in the background if the last answer is that old; the read after the answer raises what it says."""
        asked = self._asked_again
        if asked is not None and not asked.done():
            return
        failure = None if asked is None else asked.exception()
        if isinstance(failure, ChangedDataError):
            raise failure  # in every later read, too
        self._asked_again = None
        if failure is not None:
            _log.warning("it is not known whether a file is still the one that was indexed: %s", failure)
            self._verified_at, seconds = time.monotonic(), 0.0
        if seconds >= self._retry.verify_s:
            self._asked_again = in_background(self.verify)

    def _checked(self, part: byte_ranges.Range, answer: Answer | Exception) -> bytes:
        if isinstance(answer, Exception):
            if trouble_of(answer) is Trouble.OUT_OF_RANGE:
                self.verify()
            raise answer
        if self._version is None:
            self._version = answer.version
        if answer.version is not None and _differ(answer.version, self._version, is_s3(self._fs)):
            self.verify()
            raise self._entry.changed("was modified after it was indexed")
        asked, came = part[1] - part[0], len(answer.data)
        if came > asked:
            fact = f"{redacted(self._entry.path)} cannot be read at random."
            conflict = f"Asked for {asked} bytes, its server sent {came}: it ignores ranges."
            raise MissingDataError(fact, conflict, "copy the data to where ranges can be read.")
        if came < asked:
            self.verify()
            raise ShortAnswerError(f"{came} of {asked} bytes came")
        return answer.data

    def _connect(self) -> None:
        self._fs, self._path = open_filesystem(self._entry.path, self._retry)
        self._process = os.getpid()
        self._asked_again = None  # a parent's thread never answers here

    def _filesystem(self) -> Any:
        if self._process != os.getpid():  # fsspec refuses, and rightly, to use a parent's connections
            self._connect()
        return self._fs


def _differ(one: str, other: str | None, are_tags: bool) -> bool:
    """Whether two names of versions say that bytes differ. A tag, which HTTP quotes, says nothing of a date.

    Args: `are_tags`: both are.
    """
    return other is not None and one != other and (are_tags or one.startswith('"') == other.startswith('"'))


def stat_remote(path: str, retry: RetryPolicy = RETRY) -> FileEntry:
    """Describe a remote file that is to be indexed, as `locate_file`; it may be empty."""
    fs, inside = open_filesystem(path, retry)
    try:
        return _describe(fs, inside, path, retry)
    except FileNotFoundError as error:
        raise missing(path) from error


def open_remote(entry: FileEntry, retry: RetryPolicy = RETRY) -> RemoteSource:
    """Open a file that was indexed, as `open_source`. Nothing is asked yet."""
    return RemoteSource(entry, retry)


def write_remote(path: str, content: bytes, retry: RetryPolicy = RETRY) -> None:
    """Write a file behind a URL. Raises what its file system does."""
    fs, inside = open_filesystem(path, retry)
    call(fs, "pipe_file", inside, content, limit_s=retry.total_s)
    fs.invalidate_cache()


def verify_remote(entry: FileEntry, retry: RetryPolicy = RETRY) -> None:
    """Raise ChangedDataError unless the file still is the one that was indexed; MissingDataError if nobody answers."""
    RemoteSource(entry, retry).verify()


def verify_read_remote(entry: FileEntry, retry: RetryPolicy = RETRY) -> None:
    """As `verify_remote`, after all was read from the file; S3 is not asked again."""
    source = RemoteSource(entry, retry)
    if not is_s3(source._filesystem()):
        source.verify()


def _describe(fs: Any, inside: str, url: str, retry: RetryPolicy) -> FileEntry:
    def ask(limit_s: float) -> dict[str, Any]:
        fs.invalidate_cache()  # a remembered listing would hide that the file has changed
        about: dict[str, Any] = call(fs, "info", inside, limit_s=limit_s)
        return about

    about = retry.call(url, ask)
    if about["type"] != "file":
        fact = f"{redacted(url)} is not a file but a {about['type']}."
        raise MissingDataError(fact, "Only files can be read at random.", "name files, or the folder as a path.")
    if about["size"] is None:
        raise MissingDataError(
            f"The server of {redacted(url)} does not say its size.",
            "Only files of known size can be read at random.",
            "copy the data to where sizes are known.",
        )
    return _entry_of(url, about)


def _entry_of(url: str, about: dict[str, Any]) -> FileEntry:
    """A file as its file system describes it, which must know its size."""
    version = next((str(about[name]) for name in _VERSIONS.split() if about.get(name)), "")
    return FileEntry(url, int(about["size"]), version)


def expand_remote(
    url: str, patterns: tuple[str, ...], recursive: bool, listed: dict[str, FileEntry] | None = None
) -> list[str]:
    """URLs of all files that `url` names, sorted; the rules are those of `find_files`, a prefix being a folder.

    Args: `listed`: receives the files that need not be asked about again, as S3's listing describes them. (Of other
    stores' listings it is not known that they name the same version as the file itself.)

    Raises MissingDataError.
    """
    fs, path = open_filesystem(url, RETRY)
    fs.invalidate_cache()
    try:
        about: dict[str, Any] | None = _ask(fs, "info", path, url)
    except FileNotFoundError:
        about = None
    if about is not None and about["type"] == "file" and not url.endswith("/"):
        if listed is not None and about["size"]:
            listed[url] = _entry_of(url, about)
        return [url]
    if about is not None or glob.has_magic(path):
        if about is None:
            found = _files(_ask(fs, "glob", path, url, detail=True))
            there = {name: item for name, item in found.items() if name.rpartition("/")[2] != INDEX_NAME}
            error = no_match(url)
        else:
            below = _files(_ask(fs, "find", path, url, maxdepth=None if recursive else 1, detail=True))
            # What is below a folder that is hidden or the operating system's does not count, as on a local disk.
            inside = {name: name[len(path.rstrip("/")) :].strip("/").split("/")[:-1] for name in below}
            there = {n: item for n, item in below.items() if all(map(is_data, inside[n])) and matches(n, patterns)}
            error = no_such_files(url, patterns, (name.rpartition("/")[2] for name in below))
        if not there:
            raise error
        files = {_url_of(fs, name, path, url): item for name, item in there.items()}
    else:
        raise missing(url)
    if listed is not None and is_s3(fs):
        listed.update({name: _entry_of(name, item) for name, item in files.items() if item["size"]})
    return sorted(files)


def _ask(fs: Any, method: str, path: str, url: str, **options: Any) -> dict[str, Any]:
    """What fsspec says: of one path, with a type of "file" or "directory"; of several, by name."""
    answer: dict[str, Any] = RETRY.call(url, lambda limit_s: call(fs, method, path, limit_s=limit_s, **options))
    return answer


def _files(objects: dict[str, Any]) -> dict[str, Any]:
    # Some tools mark a folder by an empty object whose name ends in a slash.
    return {name: about for name, about in objects.items() if about["type"] == "file" and not name.endswith("/")}


def _url_of(fs: Any, name: str, path: str, url: str) -> str:
    """The full URL of a file, with whatever host and options the URL that led to it has."""
    base = url.rstrip("/")
    path = path.rstrip("/")
    return base[: len(base) - len(path)] + name if base.endswith(path) else str(fs.unstrip_protocol(name))
