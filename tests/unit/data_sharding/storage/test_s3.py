"""Reading from S3: against a real S3-compatible server on this machine, which counts requests and can misbehave."""

from __future__ import annotations

import itertools
import multiprocessing
import operator
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal

import fsspec
import numpy as np
import pytest
from support.s3_server import Store, serving, use

import data_sharding as ds
from data_sharding.catalog.cache import open_catalog
from data_sharding.plan.read_cost import read_cost
from data_sharding.storage import describe_file, open_source
from data_sharding.storage.byte_source import for_files
from data_sharding.storage.remote import open_remote, stat_remote, verify_remote
from data_sharding.storage.remote_filesystem import RetryPolicy

HASTY = RetryPolicy(request_s=2.0, attempts=3, pause_s=0.05, total_s=10.0)


@pytest.fixture(scope="module")
def server() -> Iterator[Store]:
    with serving() as store:
        yield store


@pytest.fixture
def store(server: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Store]:
    use(monkeypatch, tmp_path, server.endpoint)
    yield server
    server.fault = None


@pytest.fixture
def bucket(store: Store, request: pytest.FixtureRequest) -> str:
    name = f"bucket-{abs(hash(request.node.nodeid)):x}"
    fsspec.filesystem("s3").mkdir(name)
    store.asked.clear()
    return f"s3://{name}"


def put(url: str, data: bytes) -> None:
    fsspec.filesystem("s3").pipe(url, data)


def upload(folder: Path, url: str) -> None:
    for file in sorted(folder.iterdir()):
        put(f"{url}/{file.name}", file.read_bytes())


def everything(catalog: ds.Catalog) -> list[bytes]:
    with ds.RecordReader(catalog) as reader:
        return reader.read(np.arange(len(catalog)))


@pytest.mark.parametrize("shuffle", ["global", "block"])
def test_the_same_records_as_from_local_files(
    bucket: str, data_folder: Path, catalog: ds.Catalog, by_id: list[bytes], shuffle: Literal["global", "block"]
) -> None:
    upload(data_folder, f"{bucket}/train")
    remote = ds.Catalog.index(f"{bucket}/train", check_data=True)
    assert remote.fingerprint == catalog.fingerprint
    assert [file.path for file in remote.files] == [f"{bucket}/train/{f.name}" for f in sorted(data_folder.iterdir())]
    assert everything(remote) == by_id
    plans = [
        ds.ShardPlan.for_catalog(one, global_batch=8, seed=3, epoch=1, shuffle=shuffle) for one in (remote, catalog)
    ]
    assert plans[0].fingerprint == plans[1].fingerprint
    with ds.RecordReader(remote) as far, ds.RecordReader(catalog) as near:
        for step, rank in itertools.product(range(plans[0].steps), range(2)):
            one, other = (plan.shard(rank, 2, step).ids for plan in plans)
            assert far.read(one) == near.read(other)


@pytest.mark.parametrize("named", ["", "/", "/*.tfrecord", "/digits-0000?-of-*", "/**/digits-*"])
def test_folders_and_globs(bucket: str, data_folder: Path, catalog: ds.Catalog, named: str) -> None:
    upload(data_folder, f"{bucket}/a/train")
    put(f"{bucket}/a/train/notes.txt", b"no record")
    assert ds.Catalog.index(f"{bucket}/a/train{named}").fingerprint == catalog.fingerprint


def test_a_saved_catalog_finds_its_remote_files_again(bucket: str, data_folder: Path, tmp_path: Path) -> None:
    upload(data_folder, bucket)
    ds.Catalog.index(bucket).save(tmp_path / "catalog")
    loaded = ds.Catalog.load(tmp_path / "catalog")
    loaded.verify_unchanged()
    assert everything(loaded) == everything(ds.Catalog.index(data_folder))


def test_few_requests_scan_a_file_and_one_reads_a_batch_of_neighbours(
    store: Store, bucket: str, tmp_path: Path
) -> None:
    random = np.random.default_rng(1)
    records = [random.bytes(2000) for _ in range(10_000)]
    (path,) = ds.write_shards(tmp_path, "a", records, 1)
    put(f"{bucket}/a.tfrecord", path.read_bytes())
    store.asked.clear()
    catalog = ds.Catalog.index(f"{bucket}/a.tfrecord")
    assert len(catalog) == 10_000
    assert store.count("GET") <= 8  # 20 MB: 256 KiB, doubling to 8 MiB
    with ds.RecordReader(catalog) as reader:
        reader.read(np.array([0]))
        store.asked.clear()
        assert reader.read(np.arange(500, 600)) == records[500:600]
        assert [method for method, _ in store.asked] == ["GET"]
        far_apart = np.array([9000, 17, 5000])
        assert reader.read(far_apart) == [records[i] for i in far_apart]
        assert store.count("GET") == 4
        assert store.count("HEAD") == 0


@pytest.mark.parametrize("named", ["/images", "/images/**/*.jpg"])
def test_a_folder_of_images_costs_its_listing(store: Store, bucket: str, tmp_path: Path, named: str) -> None:
    for number in range(20):
        put(f"{bucket}/images/{number % 2}/{number}.jpg", bytes([number]) * 9)
    store.asked.clear()
    first = open_catalog(f"{bucket}{named}", format="image_folder", cache_dir=tmp_path)
    assert (len(first), len(store.asked) < 15) == (20, True)  # none for an object
    assert first.labels is not None
    assert first.labels.tolist() == [0] * 10 + [1] * 10
    store.asked.clear()
    warm = open_catalog(f"{bucket}{named}", format="image_folder", cache_dir=tmp_path)
    assert (warm.fingerprint, len(store.asked) < 8) == (first.fingerprint, True)
    first.verify_unchanged()  # what the listing says is what each object says
    assert sorted(everything(warm)) == [bytes([number]) * 9 for number in range(20)]
    put(f"{bucket}/images/1/7.jpg", b"\xff" * 9)
    assert open_catalog(f"{bucket}{named}", format="image_folder", cache_dir=tmp_path).files != warm.files
    with pytest.raises(ds.ChangedDataError, match="7.jpg was modified"):
        everything(warm)
    put(f"{bucket}/images/1/9.jpg", b"")
    with pytest.raises(ds.MissingDataError, match="9.jpg is empty"):
        open_catalog(f"{bucket}{named}", format="image_folder", cache_dir=tmp_path)


def test_shards_are_asked_for_what_is_read_and_nothing_more(
    store: Store, bucket: str, data_folder: Path, tmp_path: Path
) -> None:
    upload(data_folder, bucket)
    store.asked.clear()
    first = open_catalog(bucket, cache_dir=tmp_path)
    of_objects = [span for _, span in store.asked if span]
    assert len(of_objects) == len(first.files) == 4
    # Whether the URL is a file, for each of two listings; and whether an index was published.
    assert store.count("HEAD") <= 3
    store.asked.clear()
    assert open_catalog(bucket, cache_dir=tmp_path).fingerprint == first.fingerprint
    assert [span for _, span in store.asked if span] == []
    assert store.count("HEAD") <= 1


@pytest.mark.parametrize(("shuffle", "expected"), [("none", 175), ("global", 850)])
def test_the_requests_of_an_epoch_are_those_that_the_plan_names(
    store: Store, bucket: str, tmp_path: Path, shuffle: Literal["global", "none"], expected: int
) -> None:
    ds.write_shards(tmp_path, "a", [bytes(70_000)] * 39 + [bytes(9_000_000)], 2)
    upload(tmp_path, bucket)
    catalog = ds.Catalog.index(bucket)
    plan = ds.ShardPlan.for_catalog(catalog, global_batch=16, seed=3, epoch=1, shuffle=shuffle)
    cost = read_cost(plan, catalog, 2)
    assert cost is not None
    per_1000 = cost.requests_per_1000
    with ds.RecordReader(catalog) as reader:
        store.asked.clear()
        for step, rank in itertools.product(range(plan.steps), range(2)):
            reader.read(plan.shard(rank, 2, step).ids)
    assert per_1000 == pytest.approx(store.count("GET") * 1000 / 40)
    assert per_1000 == pytest.approx(expected, rel=0.2)


@pytest.mark.parametrize(("size", "global_batch", "ranks"), [(300, 61, 1), (300, 128, 3), (20_000, 24, 5)])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_block_is_asked_for_once(
    store: Store, bucket: str, tmp_path: Path, size: int, global_batch: int, ranks: int, threads: int
) -> None:
    """At most 1.1 bytes a byte of records, and with no more ranks than streams two requests a block, whatever G and
    the threads are."""
    random = np.random.default_rng(size)
    count = 12_000 if size < 1000 else 2_000
    records = [random.bytes(size) for _ in range(count)]
    ds.write_shards(tmp_path, "a", records, 2)
    upload(tmp_path, bucket)
    catalog = ds.Catalog.index(bucket)
    plan = ds.ShardPlan.for_catalog(catalog, global_batch=global_batch, seed=3, epoch=1, shuffle="block")
    cost = read_cost(plan, catalog, ranks)
    assert cost is not None
    store.asked.clear()
    seen: list[int] = []
    for rank in range(ranks):
        with (
            ds.RecordReader(catalog) as reader,
            ds.ShardLoader(plan, reader, lengths, rank=rank, size=ranks, threads=threads) as loader,
        ):
            for batch in loader:
                seen += batch.ids[batch.weights > 0].tolist()
                assert (batch.features["length"] == size).all()
    assert sorted(seen) == list(range(count))
    blocks = count / (global_batch * plan.block_steps / min(plan.streams, global_batch))
    asked = [span for method, span in store.asked if method == "GET" and span]
    assert len(asked) <= 2 * blocks + ranks
    assert sum(length(span) for span in asked) <= 1.1 * size * count
    assert cost.requests_per_1000 == pytest.approx(len(asked) * 1000 / count, rel=0.35)
    assert cost.bytes_per_byte == pytest.approx(sum(length(span) for span in asked) / (size * count), rel=0.02)


def test_a_row_group_is_asked_for_once_and_without_the_columns_that_are_not_used(
    store: Store, bucket: str, tmp_path: Path
) -> None:
    parquet, table = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow").table
    random, useful = np.random.default_rng(0), 8_000 * 1_000
    for file in range(2):
        columns = {name: [random.bytes(size) for _ in range(4_000)] for name, size in (("image", 1_000), ("note", 500))}
        names = {"image": columns["image"], "label": np.arange(4_000), "note": columns["note"]}
        parquet.write_table(table(names), tmp_path / f"{file}.parquet", row_group_size=500)
    upload(tmp_path, bucket)
    store.asked.clear()
    catalog = ds.Catalog.index(bucket, format=ds.format_named("parquet", {"data": "image", "label": "label"}))
    assert sum(length(span) for method, span in store.asked if method == "GET" and span) < useful / 20
    plan = ds.ShardPlan.for_catalog(catalog, global_batch=64, seed=3, epoch=1, shuffle="block")
    store.asked.clear()
    with ds.RecordReader(catalog) as reader, ds.ShardLoader(plan, reader, lengths, rank=0, size=1) as loader:
        assert sum(float(batch.weights.sum()) for batch in loader) == 8_000
    asked = [span for method, span in store.asked if method == "GET" and span]
    assert len(asked) <= 2 * 16
    assert sum(map(length, asked)) <= 1.1 * useful


def lengths(records: ds.RecordBatch) -> dict[str, Any]:
    return {"length": np.array([len(payload) for payload in records])}


def length(span: str) -> int:
    """Bytes of a header such as bytes=10-19."""
    begin, end = span.removeprefix("bytes=").split("-")
    return int(end) + 1 - int(begin)


def test_large_reads_are_split_and_joined(store: Store, bucket: str) -> None:
    data = np.random.default_rng(2).bytes(20_000_001)
    put(f"{bucket}/large", data)
    source = open_source(describe_file(f"{bucket}/large"))
    store.asked.clear()
    assert source.spans([5], [len(data)]) == [data[5:]]
    assert store.count("GET") == 3


def test_a_batch_of_many_files_waits_for_all_of_them_at_once(store: Store, bucket: str) -> None:
    for name in range(8):
        put(f"{bucket}/{name}", bytes([name]) * 100)
    sources = [open_source(describe_file(f"{bucket}/{name}")) for name in range(8)]
    reads = [partial(source.spans, [0, 50], [3, 52]) for source in sources]
    expected = [[bytes([name]) * length for length in (3, 2)] for name in range(8)]
    together = threading.Barrier(8)

    def fault(environ: dict[str, Any]) -> None:  # noqa: ARG001
        together.wait(timeout=60)  # broken unless all eight requests are under way at the same time

    store.fault = fault
    assert for_files(operator.call, reads, 8) == expected
    store.fault = None
    assert for_files(operator.call, reads, 1) == expected
    assert for_files(operator.call, [], 8) == []


def test_many_threads_read_through_one_reader(bucket: str, data_folder: Path, by_id: list[bytes]) -> None:
    upload(data_folder, bucket)
    with ds.RecordReader(ds.Catalog.index(bucket)) as reader, ThreadPoolExecutor(4) as pool:
        orders = [np.random.default_rng(seed).permutation(len(by_id)) for seed in range(12)]
        for order, read in zip(orders, pool.map(reader.read, orders, timeout=60), strict=True):
            assert read == [by_id[i] for i in order]


def test_a_forked_process_reads_through_the_parent_s_reader(bucket: str, data_folder: Path, by_id: list[bytes]) -> None:
    upload(data_folder, bucket)
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    with ds.RecordReader(ds.Catalog.index(bucket)) as reader:
        reader.read(np.arange(3))
        child = context.Process(target=lambda: there.send(reader.read(np.arange(len(by_id)))), daemon=True)
        child.start()
        try:
            assert here.poll(60), "the forked process did not answer"
            assert here.recv() == by_id
        finally:
            child.kill()
            child.join(60)
        assert reader.read(np.arange(3)) == by_id[:3]


class TestChanges:
    """Objects that are not what was indexed."""

    @pytest.fixture
    def entry(self, bucket: str) -> ds.FileEntry:
        put(f"{bucket}/a", b"0123456789" * 1000)
        return describe_file(f"{bucket}/a")

    def refused(self, entry: ds.FileEntry, how: str) -> None:
        with pytest.raises(ds.ChangedDataError, match=how):
            open_remote(entry, HASTY).spans([9000], [9100])
        with pytest.raises(ds.ChangedDataError, match=how):
            _ = open_remote(entry, HASTY)[9000:9100]
        with pytest.raises(ds.ChangedDataError, match=how):
            verify_remote(entry, HASTY)

    def test_unchanged(self, entry: ds.FileEntry) -> None:
        verify_remote(entry)
        assert open_remote(entry).spans([9000], [9005]) == [b"01234"]

    def test_another_content_of_the_same_size(self, entry: ds.FileEntry) -> None:
        put(entry.path, b"9876543210" * 1000)
        self.refused(entry, "was modified after it was indexed")

    def test_truncated(self, entry: ds.FileEntry) -> None:
        put(entry.path, b"0123456789" * 10)
        self.refused(entry, "had 10000 bytes when it was indexed and has 100 now")

    def test_truncated_inside_the_range(self, entry: ds.FileEntry) -> None:
        put(entry.path, b"0123456789" * 905)
        self.refused(entry, "had 10000 bytes when it was indexed and has 9050 now")

    def test_grown(self, entry: ds.FileEntry) -> None:
        put(entry.path, b"0123456789" * 1001)
        self.refused(entry, "has 10010 now")

    def test_deleted(self, entry: ds.FileEntry) -> None:
        fsspec.filesystem("s3").rm(entry.path)
        self.refused(entry, "has gone")

    def test_a_change_between_two_reads_of_an_open_file(self, entry: ds.FileEntry) -> None:
        source = open_remote(entry, HASTY)
        assert source.spans([0], [3]) == [b"012"]
        put(entry.path, b"9876543210" * 1000)
        with pytest.raises(ds.ChangedDataError, match="modified"):
            source.spans([0], [3])


class TestFailures:
    """Stores that don't answer as they should: three-part errors, in bounded time."""

    def refused(
        self, url: str, message: str, within_s: float = 60.0, retry: RetryPolicy = HASTY
    ) -> ds.MissingDataError:
        begin = time.monotonic()
        with pytest.raises(ds.MissingDataError, match=message) as caught:
            stat_remote(url, retry)
        assert time.monotonic() - begin < within_s
        assert "hush-hush" not in str(caught.value)
        assert "HINT: " in str(caught.value)
        return caught.value

    def test_no_such_key(self, bucket: str) -> None:
        self.refused(f"{bucket}/absent", "absent does not exist")

    @pytest.mark.usefixtures("store")
    def test_no_such_bucket(self) -> None:
        self.refused("s3://no-such-bucket/a", "is in a bucket that does not exist")
        for url in ("s3://no-such-bucket", "s3://no-such-bucket/a/*.tfrecord"):
            with pytest.raises(ds.MissingDataError, match="bucket that does not exist|no-such-bucket does not exist"):
                ds.Catalog.index(url)

    def test_nothing_under_a_prefix(self, bucket: str) -> None:
        put(f"{bucket}/a/notes.txt", b"x")
        for named, message in {"a": "holds no file", "a/*.tfrecord": "No file matches", "b": "does not exist"}.items():
            with pytest.raises(ds.MissingDataError, match=message):
                ds.Catalog.index(f"{bucket}/{named}")

    def test_an_empty_object_and_a_folder(self, bucket: str) -> None:
        put(f"{bucket}/f/empty", b"")
        with pytest.raises(ds.MissingDataError, match="is empty"):
            describe_file(f"{bucket}/f/empty")
        self.refused(f"{bucket}/f", "is not a file but a directory")

    def test_no_credentials(self, server: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        use(monkeypatch, tmp_path, server.endpoint, keys=False)
        error = self.refused("s3://any/a", "No credentials for s3://any/a were found")
        assert "AWS_ACCESS_KEY_ID" in error.hint

    def test_access_denied(self, store: Store, bucket: str) -> None:
        put(f"{bucket}/a", b"x")
        entry = describe_file(f"{bucket}/a")
        store.fault = lambda environ: "403 Forbidden"  # noqa: ARG005
        self.refused(f"{bucket}/a", "was denied")
        asked = len(store.asked)
        with pytest.raises(ds.MissingDataError, match="was denied"):
            open_remote(entry, HASTY).spans([0], [1])
        assert len(store.asked) == asked + 1  # not asked again: it would not help

    def test_a_closed_port(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        use(monkeypatch, tmp_path, f"http://127.0.0.1:{port}")
        self.refused("s3://any/a", "cannot be reached after 3 attempts")

    def test_a_server_that_never_answers(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            use(monkeypatch, tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}")
            retry = RetryPolicy(request_s=0.5, attempts=2, pause_s=0.05, total_s=5.0)
            self.refused("s3://any/a", "was not answered in time after 2 attempts", retry=retry)
            entry = ds.FileEntry("s3://any/a", 10, '"etag"')
            with pytest.raises(ds.MissingDataError, match="was not answered in time"):
                open_remote(entry, retry).spans([0], [5])

    def test_a_server_that_recovers(self, store: Store, bucket: str) -> None:
        put(f"{bucket}/a", b"0123456789")
        entry = describe_file(f"{bucket}/a")
        troubles = iter(["503 Slow Down", "500 Internal Server Error"])
        store.fault = lambda environ: next(troubles, None)  # noqa: ARG005
        assert open_remote(entry, HASTY).spans([2], [5]) == [b"234"]

    def test_a_server_that_does_not(self, store: Store, bucket: str) -> None:
        put(f"{bucket}/a", b"0123456789")
        entry = describe_file(f"{bucket}/a")
        store.asked.clear()
        store.fault = lambda environ: "503 Slow Down"  # noqa: ARG005
        with pytest.raises(ds.MissingDataError, match="after 3 attempts.*Service Unavailable"):
            open_remote(entry, HASTY).spans([2], [5])
        assert len(store.asked) == 3

    def test_only_the_part_that_failed_is_asked_again(self, store: Store, bucket: str) -> None:
        data = np.random.default_rng(2).bytes(1_000_000)
        put(f"{bucket}/a", data)
        entry = describe_file(f"{bucket}/a")
        store.asked.clear()
        failed: list[str] = []

        def fault(environ: dict[str, Any]) -> str | None:
            if environ["HTTP_RANGE"] == "bytes=500000-500009" and not failed:
                failed.append("once")
                return "503 Slow Down"
            return None

        store.fault = fault
        begins = [0, 500_000, 900_000]
        assert open_remote(entry, HASTY).spans(begins, [b + 10 for b in begins]) == [data[b : b + 10] for b in begins]
        assert sorted(span for _, span in store.asked) == [
            "bytes=0-9",
            "bytes=500000-500009",
            "bytes=500000-500009",
            "bytes=900000-900009",
        ]
