"""Files behind URLs other than S3's, and the laws that hold for all of them."""

from __future__ import annotations

import gc
import http.server
import io
import itertools
import os
import socket
import sys
import tarfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.processes import wait_until
from support.range_server import RangeServer, serving

import data_sharding as ds
from data_sharding.storage import byte_ranges, describe_file, open_source, verify_unchanged
from data_sharding.storage.byte_ranges import FIRST_BLOCK, LARGEST_BLOCK, ReadAhead
from data_sharding.storage.byte_source import SourceFile
from data_sharding.storage.input_files import find_files
from data_sharding.storage.redaction import redacted, redacted_values, without_secrets
from data_sharding.storage.remote import open_remote, stat_remote
from data_sharding.storage.remote_filesystem import RetryPolicy, fetch, open_filesystem

HASTY = RetryPolicy(request_s=2.0, attempts=2, pause_s=0.05, total_s=5.0)

CONTENT = np.random.default_rng(11).bytes(3000)
SPANS = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 3000)).map(sorted), max_size=30)


@pytest.fixture
def memory() -> Iterator[str]:
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    yield "memory://data"
    fs.store.clear()


@given(SPANS, st.integers(0, 500))
def test_merged_ranges_give_the_same_bytes_as_slicing(spans: list[list[int]], gap: int) -> None:
    begins, ends = [begin for begin, _ in spans], [end for _, end in spans]
    merged = byte_ranges.merge(begins, ends, gap)
    data = [CONTENT[begin:end] for begin, end in zip(merged.begins.tolist(), merged.ends.tolist(), strict=True)]
    assert byte_ranges.cut(merged, data, begins, ends) == [CONTENT[begin:end] for begin, end in spans]
    assert (merged.begins[1:] - merged.ends[:-1] > gap).all()
    asked = set[int]().union(*(range(begin, end) for begin, end in spans))
    fetched = sum(len(part) for part in data)
    assert fetched <= len(asked) + gap * max(0, len(spans) - 1)


@given(st.integers(0, 100), st.integers(0, 100), st.integers(1, 40))
def test_split_ranges_are_the_range(begin: int, length: int, longest: int) -> None:
    parts = byte_ranges.split(begin, begin + length, longest)
    assert [at for part in parts for at in range(*part)] == list(range(begin, begin + length))
    assert all(0 < end - start <= longest for start, end in parts)


@given(SPANS)
def test_sources_slice_like_bytes(spans: list[list[int]]) -> None:
    fsspec.filesystem("memory").pipe("/law", CONTENT)
    source = open_source(ds.FileEntry("memory://law", 3000, str(fsspec.filesystem("memory").info("/law")["created"])))
    assert source.size() == 3000
    wanted = [CONTENT[begin:end] for begin, end in spans]
    assert source.spans([begin for begin, _ in spans], [end for _, end in spans]) == wanted
    assert [source[begin:end] for begin, end in spans] == wanted
    assert (source[2990:4000], source[:], source[5000:6000]) == (CONTENT[2990:], CONTENT, b"")
    assert source.spans([2990, 5000], [4000, 6000]) == [CONTENT[2990:], b""]


@given(st.integers(1, 10**7), st.lists(st.integers(1, 10**6), min_size=1, max_size=40))
def test_read_ahead_reads_what_is_there_once(size: int, lengths: list[int]) -> None:
    asked: list[tuple[int, int]] = []

    def content(begin: int, end: int) -> bytes:
        return np.arange(begin // 4, -(-end // 4), dtype=np.uint32).tobytes()[begin % 4 :][: end - begin]

    def fetch(begin: int, end: int) -> bytes:
        assert 0 <= begin < end <= size
        asked.append((begin, end))
        return content(begin, end)

    ahead = ReadAhead(fetch, size)
    at = 0
    for length in lengths:
        assert ahead.read(at, at + length) == content(min(at, size), min(at + length, size))
        at += length
    assert asked[0][0] == 0
    assert all(one[1] == other[0] for one, other in itertools.pairwise(asked))  # no byte twice
    assert all(end - begin <= LARGEST_BLOCK for begin, end in asked)


def test_read_ahead_takes_few_requests_and_forgets_after_a_leap() -> None:
    asked: list[int] = []

    def fetch(begin: int, end: int) -> bytes:
        asked.append(end - begin)
        return bytes(end - begin)

    ahead = ReadAhead(fetch, 100 << 20)
    for at in range(0, 64 << 20, 1000):
        ahead.read(at, at + 12)
    assert len(asked) <= 13
    assert max(asked) == LARGEST_BLOCK
    ahead.read(90 << 20, (90 << 20) + 12)
    assert asked[-1] == FIRST_BLOCK


@given(st.lists(st.tuples(st.sampled_from([0, 1, 2]), st.integers(-300, 300), st.integers(0, 300)), max_size=30))
def test_the_file_view_is_a_file(moves: list[tuple[int, int, int]]) -> None:
    plain = io.BytesIO(CONTENT)
    view = io.BufferedReader(SourceFile(ReadAhead(lambda begin, end: CONTENT[begin:end], 3000).read, 3000), 64)
    for whence, offset, length in moves:
        base = (0, plain.tell(), 3000)[whence]
        if base + offset >= 0:
            assert view.seek(offset, whence) == plain.seek(offset, whence)
        assert view.read(length) == plain.read(length)


def test_libraries_read_the_file_view(memory: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(CONTENT)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(tmp_path / "a.txt", "a.txt")
    fsspec.filesystem("memory").pipe("/data/a.tar", packed.getvalue())
    with open_source(describe_file(f"{memory}/a.tar")).file() as file, tarfile.open(fileobj=file) as tar:
        member = tar.extractfile("a.txt")
        assert member is not None
        assert member.read() == CONTENT


@pytest.mark.parametrize("protocol", ["file", "memory"])
def test_records_through_a_url_are_the_local_ones(
    protocol: str, memory: str, data_folder: Path, catalog: ds.Catalog, by_id: list[bytes]
) -> None:
    url = f"file://{data_folder}"
    if protocol == "memory":
        url = memory
        for file in data_folder.iterdir():
            fsspec.filesystem("memory").pipe(f"/data/{file.name}", file.read_bytes())
    for named in ("", "/", "/*.tfrecord"):
        remote = ds.Catalog.index(url + named, check_data=True)
        assert remote.fingerprint == catalog.fingerprint
        assert all(file.path.startswith(url) for file in remote.files)
    with ds.RecordReader(remote) as reader:
        assert reader.read(np.arange(len(remote))) == by_id


def test_an_empty_object_follows_the_policy(memory: str, data_folder: Path, by_id: list[bytes]) -> None:
    fs = fsspec.filesystem("memory")
    for number, path in enumerate(sorted(data_folder.iterdir())):
        fs.pipe(f"/data/{number}.tfrecord", path.read_bytes())
    fs.pipe("/data/1a.tfrecord", b"")
    with pytest.raises(ds.MissingDataError, match="1a.tfrecord is empty"):
        ds.Catalog.index(memory)
    catalog = ds.Catalog.index(memory, on_corrupt="mask")
    assert (len(catalog), [damage.path for damage in catalog.damage]) == (len(by_id), [f"{memory}/1a.tfrecord"])


def test_hidden_folders_and_those_of_the_system_are_passed_over(memory: str) -> None:
    fs = fsspec.filesystem("memory")
    for name in ("a/x.jpg", "__MACOSX/a/y.jpg", "a/@eaDir/x.jpg", ".ipynb_checkpoints/z.jpg"):
        fs.pipe(f"/data/{name}", b"x")
    assert find_files(memory, ("*.jpg",), recursive=True) == [f"{memory}/a/x.jpg"]
    assert find_files(f"{memory}/__MACOSX", ("*.jpg",), recursive=True) == [f"{memory}/__MACOSX/a/y.jpg"]


def test_folders_of_a_folder_count_when_asked(memory: str) -> None:
    fs = fsspec.filesystem("memory")
    for name in ("b.rec", "a/2.rec", "a/1.rec", "a/.hidden.rec", "a/c/3.rec", "notes.txt"):
        fs.pipe(f"/data/{name}", b"x")
    assert find_files(memory, ("*.rec",)) == [f"{memory}/b.rec"]
    nested = [f"{memory}/{name}" for name in ("a/1.rec", "a/2.rec", "a/c/3.rec", "b.rec")]
    assert find_files(memory, ("*.rec",), recursive=True) == nested
    assert find_files([f"{memory}/b.rec", f"{memory}/a"], ("*.rec",)) == [nested[3], *nested[:2]]
    with pytest.raises(ds.PlanError, match="twice"):
        find_files([memory, f"{memory}/b.rec"], ("*.rec",))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.write_bytes(CONTENT[:-1] + b"x"), "was modified"),
        (lambda path: path.write_bytes(CONTENT[:10]), "had 3000 bytes when it was indexed and has 10 now"),
        (lambda path: path.unlink(), "has gone"),
    ],
)
def test_changes_are_noticed(tmp_path: Path, change: Callable[[Path], Any], message: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(CONTENT)
    os.utime(path, (1, 1))
    entry = describe_file(f"file://{path}")
    source = open_source(entry)
    verify_unchanged(entry)
    source.spans([0], [1])
    change(path)
    for attempt in (lambda: verify_unchanged(entry), lambda: open_source(entry).spans([0], [1])):
        with pytest.raises(ds.ChangedDataError, match=message):
            attempt()
    if "modified" not in message:  # such a store does not say with its bytes which version they are: it is asked later
        with pytest.raises(ds.ChangedDataError, match=message):
            source.spans([2000], [2100])


def test_a_change_between_two_reads_is_noticed_by_the_tags_of_the_answers(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(CONTENT)
    with serving(tmp_path) as server:
        source = open_source(describe_file(f"{server.url}/a"))
        server.reset()
        for begin in (0, 1000, 2000):
            assert source.spans([begin], [begin + 100]) == [CONTENT[begin : begin + 100]]
        assert server.requests == 3 + 1  # the file is asked about once
        (tmp_path / "a").write_bytes(CONTENT[::-1])
        with pytest.raises(ds.ChangedDataError, match="was modified"):
            source.spans([500], [600])


def test_a_store_that_names_no_version_with_its_bytes_is_asked_again(memory: str) -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe("/data/a", CONTENT)
    source = open_remote(describe_file(f"{memory}/a"), RetryPolicy(verify_s=0.0))
    for begin in range(0, 3000, 10):
        assert source[begin : begin + 10] == CONTENT[begin : begin + 10]
    fs.pipe("/data/a", CONTENT[::-1])

    def is_refused() -> bool:
        try:
            source.spans([0], [10])
        except ds.ChangedDataError as error:
            return "was modified" in str(error)
        return False

    wait_until("the file that changed is refused", is_refused, 30)
    assert is_refused()


class Plain(http.server.SimpleHTTPRequestHandler):
    """Answers every request with the whole file, whatever range is asked for."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    def handler(*args: Any) -> Plain:
        return Plain(*args, directory=str(tmp_path))

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(60)


def test_a_server_that_ignores_ranges_is_refused(web: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(CONTENT)
    entry = describe_file(f"{web}/a")
    assert entry.size == 3000
    assert open_source(entry).spans([0], [3000]) == [CONTENT]
    with pytest.raises(ds.MissingDataError, match="ignores ranges"):
        open_source(entry).spans([5], [10])


def test_a_change_between_two_reads_is_noticed_by_the_dates_of_the_answers(web: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(CONTENT)
    os.utime(tmp_path / "a", (1, 1))
    source = open_source(describe_file(f"{web}/a"))
    assert source.spans([0], [3000]) == [CONTENT]
    (tmp_path / "a").write_bytes(CONTENT[::-1])
    with pytest.raises(ds.ChangedDataError, match="was modified"):
        source.spans([0], [3000])


def test_servers_may_name_two_versions_of_the_same_bytes(tmp_path: Path) -> None:
    """As edges of one cache do; another one names none, and so a date. Nothing is asked for that."""
    tags, asked = itertools.cycle(['"a"', 'W/"a"', None]), []

    class TwoTags(Plain):
        def end_headers(self) -> None:
            tag = next(tags) if self.command == "GET" else '"a"'
            if tag is not None:
                self.send_header("ETag", tag)
            asked.append(self.command)
            super().end_headers()

    def handler(*args: Any) -> Plain:
        return TwoTags(*args, directory=str(tmp_path))

    (tmp_path / "a").write_bytes(CONTENT)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        source = open_source(describe_file(f"http://127.0.0.1:{server.server_port}/a"))
        assert [source.spans([0], [3000]) for _ in range(7)] == [[CONTENT]] * 7
        assert asked.count("HEAD") <= 2
        tags = itertools.cycle(['"b"'])
        with pytest.raises(ds.ChangedDataError, match="was modified"):  # of an edge that is ahead of the others
            source.spans([0], [3000])
        server.shutdown()


def test_a_store_that_does_not_answer_once_is_asked_again(
    memory: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe("/data/a", CONTENT)
    source = open_remote(describe_file(f"{memory}/a"), RetryPolicy(verify_s=0.0, attempts=1))
    assert source.spans([0], [5]) == [CONTENT[:5]]
    asked: list[float] = []

    def info(*_: Any, **__: Any) -> NoReturn:
        asked.append(time.monotonic())
        raise TimeoutError("away for a moment")

    monkeypatch.setattr(type(fs), "info", info)  # of the library
    caplog.set_level("WARNING", "data_sharding")
    wait_until("the store is asked twice", lambda: source.spans([0], [5]) == [CONTENT[:5]] and len(asked) > 1, 30)
    assert "it is not known whether a file is still the one that was indexed" in caplog.text


def test_http_says_what_is_missing(web: str) -> None:
    with pytest.raises(ds.MissingDataError, match="absent does not exist"):
        describe_file(f"{web}/absent")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(ds.MissingDataError, match="cannot be reached after 2 attempts"):
        stat_remote(f"http://127.0.0.1:{port}/a", HASTY)


def test_urls_that_cannot_be_opened(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ds.MissingDataError, match="Protocol not known: s4"):
        describe_file("s4://bucket/a")
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(ds.MissingDataError, match=r"gs:// is not installed.*\n.*hvdtrain\[gcs\]"):
        describe_file("gs://bucket/a")
    with pytest.raises(ds.MissingDataError, match="does not exist"):
        ds.Catalog.index(f"{memory}/absent")
    with pytest.raises(ds.MissingDataError, match="No file matches"):
        ds.Catalog.index(f"{memory}/absent-*")


def test_the_parent_of_a_process_that_reads_too_keeps_its_connections(tmp_path: Path) -> None:
    """As with workers of torch's DataLoader, which are forked: fsspec frees the parent's file systems there."""
    (tmp_path / "a").write_bytes(CONTENT)

    def read(server: RangeServer) -> bytes:
        fs, path = open_filesystem(f"{server.url}/a", HASTY)
        (answer,) = fetch(fs, path, [(0, 10)], limit_s=10.0)
        assert not isinstance(answer, Exception), answer
        return answer.data

    with serving(tmp_path) as server:
        assert read(server) == CONTENT[:10]
        child = os.fork()
        if child == 0:
            try:
                read(server)
                gc.collect()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert read(server) == CONTENT[:10]


def test_a_blocking_library_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ds.MissingDataError, match="not answered in time after 2 attempts") as caught:
            stat_remote(f"ftp://reader:hush@{host}/a", RetryPolicy(request_s=0.3, attempts=2, pause_s=0.01, total_s=5))
    assert f"ftp://***@{host}/a" in str(caught.value)


def test_not_even_the_traceback_shows_a_secret(web: str) -> None:
    for url in (f"{web}/absent?X-Amz-Signature=hush", f"{web.replace('//', '//reader:hush@')}/absent", "s4://a:hush@b"):
        with pytest.raises(ds.MissingDataError) as caught:
            stat_remote(url, HASTY)
        shown = "".join(traceback.format_exception(caught.value))
        assert "***" in shown
        assert all("hush" not in line for line in shown.splitlines() if not line.lstrip().startswith("for url in"))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("/data/a b", "/data/a b"),
        ("s3://bucket/key", "s3://bucket/key"),
        ("sftp://me:hush@host:22/a", "sftp://***@host:22/a"),
        ("https://host/a?X-Amz-Signature=hush&v=1", "https://host/a?X-Amz-Signature=***&v=***"),
        ("simplecache::https://me:hush@host/a", "simplecache::https://***@host/a"),
        ("ftp://me:hu%40sh@host/a@b", "ftp://***@host/a@b"),
        ("s3://bucket/a@b=c?d=[e]", "s3://bucket/a@b=c?d=[e]"),
        ("memory://a[1]*", "memory://a[1]*"),
    ],
)
def test_secrets_of_urls_are_not_shown(url: str, shown: str) -> None:
    assert redacted(url) == shown
    told = without_secrets(f"cannot open {url}: login 'hu@sh' or hush", url)
    assert told.startswith(f"cannot open {shown}: login")
    if "%40" in url:
        assert "hu@sh" not in told
    elif url != shown:
        assert "hush" not in told


def test_secrets_are_not_shown_anywhere_in_a_config_or_a_command() -> None:
    options = {"data": {"dir": "sftp://me:hush@host/x", "threads": 2}, "urls": ["https://a/b?sig=hush"], "lr": None}
    assert redacted_values(options) == {
        "data": {"dir": "sftp://***@host/x", "threads": 2},
        "urls": ["https://a/b?sig=***"],
        "lr": None,
    }
    words = ["train", "--resume=https://a/b?sig=hush", "--lr=0.1", "/a=b?c=d"]
    assert redacted_values(words) == ["train", "--resume=https://a/b?sig=***", "--lr=0.1", "/a=b?c=d"]
