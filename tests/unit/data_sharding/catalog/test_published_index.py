"""Indexes beside data files: read instead of the files, copied with them, refused where the files are others."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.range_server import RangeServer, serving

import data_sharding as ds
from data_sharding.catalog.cache import open_catalog
from data_sharding.catalog.catalog_file import StoredCatalog
from data_sharding.catalog.index_file import packed, unpacked
from data_sharding.catalog.published_index import place_of
from data_sharding.formats.registry import format_named

INDEX = "data_sharding.index"


@pytest.fixture
def folder(data_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(data_folder, tmp_path / "data"))


@pytest.fixture
def store(folder: Path) -> Iterator[RangeServer]:
    with serving(folder) as server:
        yield server


def urls(store: RangeServer) -> list[str]:
    return [f"{store.url}/{path.name}" for path in sorted(store.folder.glob("*.tfrecord"))]


def same(one: ds.Catalog | None, other: ds.Catalog) -> bool:
    return one is not None and one.fingerprint == other.fingerprint and one.files == other.files


FILES = st.lists(
    st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**33), st.integers(0, 2**32 - 1)), max_size=20),
    min_size=1,
    max_size=5,
)


@given(FILES, st.booleans())
def test_what_was_packed_is_unpacked(files: list[list[tuple[int, int, int]]], with_crcs: bool) -> None:
    rows = [row for file in files for row in file]
    if not rows:
        return
    columns = {
        "file_ids": np.repeat(np.arange(len(files), dtype=np.int32), [len(file) for file in files]),
        "offsets": np.array([12 + offset for offset, _, _ in rows], np.int64),
        "lengths": np.array([length for _, length, _ in rows], np.int64),
        "crcs": np.array([crc for _, _, crc in rows], np.uint32) if with_crcs else None,
        "labels": None,
    }
    entries = tuple(ds.FileEntry(f"s3://b/a/{number}", 2**50, "v") for number in range(len(files)))
    stored = StoredCatalog(format_named("tfrecord"), entries, columns, (), "")
    again, at_home = unpacked("x", packed(stored, "s3://b/a"), "s3://b/a")
    assert at_home
    assert again.files == entries
    for name, column in columns.items():
        np.testing.assert_array_equal(again.columns[name], column)


def test_later_jobs_do_not_look_into_the_files(folder: Path, store: RangeServer, tmp_path: Path) -> None:
    ds.Catalog.index(folder, publish=True)
    scanned = ds.Catalog.index(urls(store))
    store.reset()
    read = ds.Catalog.published(urls(store))
    assert same(read, scanned)
    assert store.bytes == (folder / INDEX).stat().st_size
    store.reset()
    assert same(open_catalog(urls(store), cache_dir=tmp_path / "catalogs"), scanned)
    assert store.bytes == (folder / INDEX).stat().st_size


def test_an_index_of_records_of_1_kb_takes_less_than_a_hundredth(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    ds.write_shards(tmp_path, "a", [random.bytes(int(n)) for n in random.integers(900, 1100, 2000)], 2)
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    ds.Catalog.index(tmp_path, publish=True)
    assert (tmp_path / INDEX).stat().st_size < 0.01 * size


def test_the_index_is_no_data(folder: Path, catalog: ds.Catalog) -> None:
    ds.Catalog.index(folder, publish=True)
    for paths in (folder, f"{folder}/*", f"file://{folder}", f"file://{folder}/*"):
        assert ds.Catalog.index(paths).fingerprint == catalog.fingerprint
        published = ds.Catalog.published(paths)
        assert published is not None
        assert published.fingerprint == catalog.fingerprint


def test_it_is_written_to_a_store(data_folder: Path) -> None:
    fs = fsspec.filesystem("memory")
    for path in data_folder.iterdir():
        fs.pipe(f"/published/{path.name}", path.read_bytes())
    scanned = ds.Catalog.index("memory://published", publish=True)
    assert fs.exists(f"/published/{INDEX}")
    assert same(ds.Catalog.published("memory://published"), scanned)
    fs.rm("/published", recursive=True)


def test_it_serves_some_of_the_files_in_any_order(folder: Path) -> None:
    ds.Catalog.index(folder, publish=True)
    chosen = sorted(folder.glob("*.tfrecord"))[3:0:-2]
    assert same(ds.Catalog.published(chosen), ds.Catalog.index(chosen))


def test_publishing_other_files_keeps_the_first_ones(folder: Path) -> None:
    first, *others = sorted(folder.glob("*.tfrecord"))
    ds.Catalog.index(first, publish=True)
    assert ds.Catalog.published(folder) is None  # it does not know them all
    ds.Catalog.index(others, publish=True)
    assert same(ds.Catalog.published(folder), ds.Catalog.index(folder))


def test_another_format_is_not_what_it_describes(folder: Path) -> None:
    ds.Catalog.index(folder, publish=True)
    assert ds.Catalog.published(f"{folder}/*", format="recordio") is None


def _touch(file: Path) -> None:
    os.utime(file, (1, 1))


def _grow(file: Path) -> None:
    file.write_bytes(file.read_bytes() * 2)


@pytest.mark.parametrize(
    ("change", "how"), [(_touch, "was modified since then"), (_grow, "had .* bytes, and has .* now")]
)
def test_an_index_of_other_data_is_refused(folder: Path, change: Callable[[Path], None], how: str) -> None:
    ds.Catalog.index(folder, publish=True)
    change(sorted(folder.glob("*.tfrecord"))[1])
    with pytest.raises(ds.CatalogError, match=rf"is of other data than .*-00001-.*: it {how}.*\n.*HINT: publish it"):
        open_catalog(folder)
    ds.Catalog.index(folder, publish=True)
    assert same(open_catalog(folder), ds.Catalog.index(folder))


@given(st.integers(0, 10**6), st.integers(0, 7))
def test_a_damaged_index_is_refused(tmp_path_factory: pytest.TempPathFactory, place: int, bit: int) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    ds.write_shards(folder, "a", [b"one", b"two"], 1)
    ds.Catalog.index(folder, publish=True)
    content = bytearray((folder / INDEX).read_bytes())
    magic = len("data_sharding index 1\n")
    content[magic + place % (len(content) - magic)] ^= 1 << bit
    (folder / INDEX).write_bytes(content)
    with pytest.raises(ds.CatalogError, match=r"data_sharding.index cannot be used.*\n.*HINT: publish it again"):
        ds.Catalog.published(folder)


@pytest.mark.parametrize("content", [b"<html>not found</html>", b""])
def test_what_is_no_index_is_passed_over(content: bytes, folder: Path) -> None:
    (folder / INDEX).write_bytes(content)
    assert ds.Catalog.published(folder) is None


def test_where_nothing_can_be_written_it_says_so(store: RangeServer) -> None:
    with pytest.raises(ds.CatalogError, match=r"data_sharding.index cannot be written.*\n.*HINT: write where you may"):
        ds.Catalog.index(urls(store), publish=True)


def test_damaged_data_is_not_published(folder: Path) -> None:
    damaged = sorted(folder.glob("*.tfrecord"))[0]
    damaged.write_bytes(damaged.read_bytes()[:-3])
    with pytest.raises(ds.PlanError, match="An index of it would hide that"):
        ds.Catalog.index(folder, on_corrupt="mask", publish=True)


@pytest.mark.parametrize(
    ("names", "place"),
    [
        (["/a/b/c", "/a/b/d"], "/a/b"),
        (["/a/b/c", "/a/bb/d"], "/a"),
        (["/a/b/c"], "/a/b"),
        (["/a", "/b/c"], None),
        (["s3://b/x/1", "s3://b/x/y/2"], "s3://b/x"),
        (["s3://b/1", "s3://c/2"], None),
        (["s3://b/1", "/c/2"], None),
        (["https://h/a?sig=1"], None),
        (["simplecache::https://h/d/a", "simplecache::https://h/d/b"], "simplecache::https://h/d"),
        (["zip://a.tar::s3://b/c.zip"], None),
    ],
)
def test_the_index_stands_in_the_deepest_common_folder(names: list[str], place: str | None) -> None:
    assert place_of(names) == (None if place is None else f"{place}/{INDEX}")
