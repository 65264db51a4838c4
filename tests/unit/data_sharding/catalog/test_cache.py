"""Kept catalogs: used while they are true, replaced when they are not, made once by many processes."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import filelock
import fsspec
import numpy as np
import pytest

import data_sharding as ds
from data_sharding.catalog.cache import open_catalog

DEADLINE_S = 60


@pytest.fixture
def folder(data_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(data_folder, tmp_path / "data"))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def kept(cache: Path) -> list[Path]:
    return sorted(path for path in cache.iterdir() if path.suffix != ".lock")


def written(cache: Path) -> list[tuple[str, int]]:
    """What is kept, and which writing of it: a catalog that was replaced is another file."""
    return [(path.name, path.stat().st_ino) for path in kept(cache)]


def rewrite(file: Path, records: list[bytes]) -> None:
    """Another content at another time."""
    before = file.stat().st_mtime_ns
    with ds.TFRecordWriter(file) as writer:
        for record in records:
            writer.write(record)
    os.utime(file, ns=(before + 10**9, before + 10**9))


def first_file(folder: Path) -> Path:
    return sorted(folder.glob("*.tfrecord"))[0]


def same(one: ds.Catalog, other: ds.Catalog) -> bool:
    return one.fingerprint == other.fingerprint and one.files == other.files and one.damage == other.damage


def test_the_second_time_nothing_is_scanned(folder: Path, cache: Path) -> None:
    made = open_catalog(folder, cache_dir=cache)
    before = written(cache)
    assert len(before) == 1
    # A scan would fail: the bytes are gone, but size and time are as they were.
    file = first_file(folder)
    status = file.stat()
    file.write_bytes(bytes(status.st_size))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(ds.CorruptRecordError):
        ds.Catalog.index(folder)
    assert same(open_catalog(str(folder), cache_dir=cache), made)
    assert written(cache) == before


def test_without_a_place_nothing_is_kept(folder: Path) -> None:
    before = sorted(folder.iterdir())
    assert same(open_catalog(folder), ds.Catalog.index(folder))
    assert sorted(folder.iterdir()) == before


def test_changes_of_any_file_are_seen(folder: Path, cache: Path) -> None:
    made = open_catalog(folder, cache_dir=cache)
    file = first_file(folder)
    rewrite(file, [b"new"])
    changed = open_catalog(folder, cache_dir=cache)
    assert same(changed, ds.Catalog.index(folder))
    assert changed.fingerprint != made.fingerprint
    shutil.copy(file, folder / "extra.tfrecord")
    assert len(open_catalog(folder, cache_dir=cache)) == len(changed) + 1
    (folder / "extra.tfrecord").unlink()
    assert same(open_catalog(folder, cache_dir=cache), changed)
    os.utime(file, ns=(1, 1))
    assert open_catalog(folder, cache_dir=cache).files[0].version == "1"
    assert len(kept(cache)) == 1  # one request, one catalog, replaced each time


def test_the_order_of_the_files_counts(folder: Path, cache: Path) -> None:
    files = sorted(folder.iterdir())
    for paths in (files, files[::-1], files[:2], files):
        assert same(open_catalog(paths, cache_dir=cache), ds.Catalog.index(paths))
    assert len(kept(cache)) == 3


def test_a_damaged_catalog_is_replaced(folder: Path, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = open_catalog(folder, cache_dir=cache)
    (place,) = kept(cache)
    sound = place.read_bytes()
    for content in (b"", sound[:100], sound.replace(b"digits", b"digitz"), bytes(len(sound))):
        place.write_bytes(content)
        caplog.clear()
        with caplog.at_level(logging.INFO, "data_sharding"):
            assert same(open_catalog(folder, cache_dir=cache), made)
        assert f"The catalog {place} cannot be used" in caplog.text
        assert same(ds.Catalog.load(place), made)


def test_a_catalog_of_other_data_in_its_place_is_not_believed(folder: Path, cache: Path, tmp_path: Path) -> None:
    made = open_catalog(folder, cache_dir=cache)
    (place,) = kept(cache)
    ds.write_shards(tmp_path / "other", "digits", [b"a", b"b"], 2)
    ds.Catalog.index(tmp_path / "other").save(place)
    assert same(open_catalog(folder, cache_dir=cache), made)


class TestCheckedData:
    """A catalog whose data was verified stays verified; one whose data was not is not taken for it."""

    def damage_a_payload(self, folder: Path) -> None:
        file = first_file(folder)
        status = file.stat()
        content = bytearray(file.read_bytes())
        content[int(ds.scan(file).offsets[1])] ^= 1
        file.write_bytes(content)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))

    def test_unchecked_does_not_serve_for_checked(self, folder: Path, cache: Path) -> None:
        self.damage_a_payload(folder)
        open_catalog(folder, cache_dir=cache)
        with pytest.raises(ds.CorruptRecordError):
            open_catalog(folder, True, cache_dir=cache)
        assert len(kept(cache)) == 1

    def test_checked_serves_for_both(self, folder: Path, cache: Path) -> None:
        made = open_catalog(folder, True, cache_dir=cache)
        before = written(cache)
        self.damage_a_payload(folder)  # unseen by size and time: whoever scanned would find it
        assert same(open_catalog(folder, True, cache_dir=cache), made)
        assert same(open_catalog(folder, False, cache_dir=cache), made)
        assert written(cache) == before

    def test_damage_that_was_found_is_remembered_and_still_raised(self, folder: Path, cache: Path) -> None:
        self.damage_a_payload(folder)
        made = open_catalog(folder, True, on_corrupt="mask", cache_dir=cache)
        before = written(cache)
        assert len(made.damage) == 1
        assert same(open_catalog(folder, True, on_corrupt="quarantine", cache_dir=cache), made)
        assert written(cache) == before
        with pytest.raises(ds.CorruptRecordError, match="Record 1"):
            open_catalog(folder, True, cache_dir=cache)
        assert written(cache) == before


def scan_in_process(folder: Path, cache: Path, start: object, done: object) -> None:
    start.wait(DEADLINE_S)  # type: ignore[attr-defined]
    catalog = open_catalog(folder, cache_dir=cache)
    (place,) = kept(cache)
    done.put((catalog.fingerprint, place.stat().st_ino))  # type: ignore[attr-defined]


def test_many_processes_scan_once(folder: Path, cache: Path) -> None:
    context = multiprocessing.get_context("fork")
    start, done = context.Event(), context.Queue()
    ranks = [context.Process(target=scan_in_process, args=(folder, cache, start, done), daemon=True) for _ in range(4)]
    for rank in ranks:
        rank.start()
    start.set()
    try:
        answers = {done.get(timeout=DEADLINE_S) for _ in ranks}
    finally:
        for rank in ranks:
            rank.join(DEADLINE_S)
            rank.kill()
    assert len(answers) == 1  # one file, written once
    assert answers.pop()[0] == ds.Catalog.index(folder).fingerprint


def test_waiting_has_an_end(folder: Path, cache: Path) -> None:
    open_catalog(folder, cache_dir=cache)
    (place,) = kept(cache)
    place.unlink()
    with (
        filelock.FileLock(f"{place}.lock"),
        pytest.raises(ds.CatalogError, match=r"Another process has been indexing .* for 0.1 s"),
    ):
        open_catalog(folder, cache_dir=cache, wait_s=0.1)
    open_catalog(folder, cache_dir=cache)


def test_a_true_catalog_needs_no_lock(folder: Path, cache: Path) -> None:
    made = open_catalog(folder, cache_dir=cache)
    (place,) = kept(cache)
    with filelock.FileLock(f"{place}.lock"):
        assert same(open_catalog(folder, cache_dir=cache, wait_s=0.1), made)


def test_a_place_that_cannot_be_written_is_logged(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    assert same(open_catalog(folder, cache_dir=tmp_path / "file" / "cache"), ds.Catalog.index(folder))
    assert "catalogs cannot be kept at" in caplog.text


@pytest.fixture
def memory(data_folder: Path) -> Iterator[str]:
    fs = fsspec.filesystem("memory")
    for file in data_folder.iterdir():
        fs.pipe(f"/kept/{file.name}", file.read_bytes())
    yield "memory://kept"
    fs.store.clear()


def test_remote_data_is_kept_and_checked_too(memory: str, cache: Path) -> None:
    made = open_catalog(memory, cache_dir=cache)
    before = written(cache)
    assert same(open_catalog(memory, cache_dir=cache), made)
    assert written(cache) == before
    name = made.files[1].path
    fs = fsspec.filesystem("memory")
    fs.pipe(name, fs.cat(made.files[2].path))
    changed = open_catalog(memory, cache_dir=cache)
    assert same(changed, ds.Catalog.index(memory))
    assert not np.array_equal(changed.lengths, made.lengths)
