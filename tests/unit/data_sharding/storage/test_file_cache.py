"""Copies of remote files: used instead of the store, made once a host, safe against kills, within their limit."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.range_server import RangeServer, serving

import data_sharding as ds
from data_sharding.catalog.cache import open_catalog
from data_sharding.formats.writers import TarWriter
from data_sharding.storage import FileEntry, cache_folder, cache_note, describe_file, file_cache
from data_sharding.storage.cache_folder import CacheFolder
from data_sharding.storage.cached_file import CachedFile
from data_sharding.storage.file_cache import SOON_SECONDS, FileCache

DEADLINE_S = 60
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def store(data_folder: Path, tmp_path: Path) -> Iterator[RangeServer]:
    with serving(Path(shutil.copytree(data_folder, tmp_path / "store"))) as server:
        yield server


@pytest.fixture
def urls(store: RangeServer) -> list[str]:
    return [f"{store.url}/{path.name}" for path in sorted(store.folder.iterdir())]


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[FileCache]:
    cache = FileCache(tmp_path / "cache")
    yield cache
    cache.close()


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def copies(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in (folder / "files").iterdir() if "." not in path.name}


def parts(folder: Path) -> list[Path]:
    return list((folder / "files").glob("*.part"))


def test_records_come_from_copies_once_they_are_there(
    store: RangeServer, urls: list[str], cache: FileCache, by_id: list[bytes]
) -> None:
    catalog = ds.Catalog.index(urls)
    store.reset()
    everything = np.arange(len(catalog))
    with ds.RecordReader(catalog, cache=cache) as reader:
        assert reader.read(everything) == by_id
        until(lambda: all(cache.find(entry) for entry in catalog.files))
        assert reader.read(everything) == by_id
        store.broken = True
        assert reader.read(everything) == by_id
    with ds.RecordReader(catalog, cache=FileCache(cache.folder)) as later:
        assert later.read(everything) == by_id


def test_an_index_of_all_bytes_leaves_the_copies(
    store: RangeServer, urls: list[str], cache: FileCache, by_id: list[bytes], catalog: ds.Catalog
) -> None:
    remote = ds.Catalog.index(urls, cache=cache)
    assert remote.fingerprint == catalog.fingerprint
    assert [file.path for file in remote.files] == urls
    assert store.bytes == sum(file.size for file in remote.files)
    store.broken = True
    with ds.RecordReader(remote, cache=cache) as reader:
        assert reader.read(np.arange(len(remote))) == by_id


def test_many_processes_make_one_copy(store: RangeServer, urls: list[str], tmp_path: Path) -> None:
    entries = [describe_file(url) for url in urls]
    store.reset()
    with SPAWN.Pool(3) as pool:
        sizes = pool.starmap(_fetch_all, [(str(tmp_path / "cache"), entries)] * 3)
    assert sizes == [[entry.size for entry in entries]] * 3
    assert store.bytes == sum(entry.size for entry in entries)


def _fetch_all(folder: str, entries: list[FileEntry]) -> list[int]:
    cache = FileCache(folder)
    found = [cache.fetch(entry) for entry in entries]
    return [len(Path(copy.path).read_bytes()) for copy in found if copy is not None]


def test_a_killed_process_leaves_nothing_in_the_way(store: RangeServer, urls: list[str], cache: FileCache) -> None:
    entry = describe_file(urls[0])
    ready = SPAWN.Event()
    killed = SPAWN.Process(target=_hold_part, args=(cache.folder, entry, ready))
    killed.start()
    assert ready.wait(DEADLINE_S)
    (part,) = parts(Path(cache.folder))
    assert cache.find(entry) is None
    os.kill(killed.pid or 0, signal.SIGKILL)
    killed.join(DEADLINE_S)
    copy = cache.fetch(entry)
    assert copy is not None
    assert Path(copy.path).read_bytes() == (store.folder / urls[0].rpartition("/")[2]).read_bytes()
    assert not part.exists()


def test_what_a_killed_process_has_left_takes_no_room_from_others(urls: list[str], tmp_path: Path) -> None:
    entries = sorted(map(describe_file, urls), key=lambda entry: entry.size)
    limit = entries[-1].size
    FileCache(tmp_path / "cache", limit).open().close()
    for name in (FileCache(tmp_path / "cache").open().place(entries[-1]).name, "0" * 32):
        (tmp_path / "cache" / "files" / f"{name}.part").write_bytes(bytes(entries[0].size))
    (tmp_path / "cache" / "files" / ("0" * 32)).write_bytes(bytes(entries[0].size))  # that was not noted any more
    with FileCache(tmp_path / "cache", limit).open().making(entries[0], wait=True):  # this one is being written
        (written,) = [FileCache(tmp_path / "cache").open().place(entries[0]).with_suffix(".part")]
        written.write_bytes(b"half")
        assert FileCache(tmp_path / "cache", limit + 4).fetch(entries[-1]) is not None
        assert parts(tmp_path / "cache") == [written]
        assert len(copies(tmp_path / "cache")) == 1


def _hold_part(folder: str, entry: FileEntry, ready: Any) -> None:
    opened = FileCache(folder).open()
    with opened.making(entry, wait=True):
        assert opened.admit(entry, entry.size)
        _hold(opened, entry, ready)


def _hold(opened: CacheFolder, entry: FileEntry, ready: Any) -> None:
    with opened.part(entry, entry.size) as file:
        file.write(b"half")
        file.flush()
        ready.set()
        time.sleep(DEADLINE_S)


def test_copies_that_come_soon_are_waited_for(store: RangeServer, urls: list[str], cache: FileCache) -> None:
    entries = [describe_file(url) for url in urls]
    assert [cache.ask(entry) for entry in entries].count(None) >= 1
    until(lambda: cache._bytes)  # before anything has come, nobody knows how long it takes
    store.reset()
    waited = [cache.wait(entry) for entry in entries]
    assert [copy and copy.size for copy in waited] == [entry.size for entry in entries]
    assert cache._missing == {}


def test_the_first_batch_waits_for_no_copy(urls: list[str], cache: FileCache) -> None:
    """Not even for one that seems to come soon. Here another process has begun to make it, and does not go on."""
    catalog = ds.Catalog.index(urls)
    *others, last = catalog.files
    lock_of = lambda entry: cache.open().making(entry, wait=False).lock_file  # noqa: E731  several files may share one
    others = [entry for entry in others if lock_of(entry) != lock_of(last)]
    with FileCache(cache.folder).open().making(last, wait=True), ds.RecordReader(catalog, cache=cache) as reader:
        for entry in (last, *others):
            cache.ask(entry)
        until(lambda: all(map(cache.find, others)))
        assert cache._is_soon()
        begin = time.monotonic()
        reader.load(np.flatnonzero(catalog.file_ids == len(others))[:2])
        assert time.monotonic() - begin < SOON_SECONDS / 2


def test_what_no_living_process_uses_makes_room(urls: list[str], tmp_path: Path) -> None:
    entries = [describe_file(url) for url in urls]
    limit = entries[0].size + entries[1].size
    first = FileCache(tmp_path / "cache", limit)
    assert [first.fetch(entry) is not None for entry in entries] == [True, True, False, False]
    first.close()
    time.sleep(0.01)  # so that the next session begins later by the disk's clock
    second = FileCache(tmp_path / "cache", limit)
    assert second.find(entries[1]) is not None  # used now: the other one goes
    assert second.fetch(entries[2]) is not None or entries[2].size > entries[0].size
    assert second.find(entries[1]) is not None
    assert sum(copies(tmp_path / "cache").values()) <= limit
    second.close()


def test_a_file_that_does_not_fit_is_read_from_the_store(
    urls: list[str], tmp_path: Path, by_id: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    catalog = ds.Catalog.index(urls)
    cache = FileCache(tmp_path / "cache", max(file.size for file in catalog.files))
    with ds.RecordReader(catalog, cache=cache) as reader:
        assert reader.read(np.arange(len(catalog))) == by_id
        until(lambda: copies(tmp_path / "cache") and "HINT: allow a larger cache" in caplog.text)
        assert reader.read(np.arange(len(catalog))) == by_id
    assert caplog.text.count("HINT") == 1


def change(copy: Path, at: int, count: int = 8) -> None:
    """Flip bits, as whoever puts the modification time back."""
    content, times = bytearray(copy.read_bytes()), copy.stat()
    content[at : at + count] = bytes(byte ^ 0xFF for byte in content[at : at + count])
    copy.write_bytes(content)
    os.utime(copy, ns=(times.st_atime_ns, times.st_mtime_ns))


def rot(copy: Path, at: int, count: int = 8) -> None:
    """Flip bits, as a disk that fails, which changes no time."""
    change(copy, at, count)
    note = copy.with_name(f"{copy.name}.json")
    about = json.loads(note.read_bytes())
    note.write_text(json.dumps(about | {"ctime_ns": copy.stat().st_ctime_ns}))


@pytest.mark.parametrize("damage", [change, rot])
def test_a_damaged_copy_is_replaced(
    urls: list[str], cache: FileCache, by_id: list[bytes], damage: Callable[[Path, int, int], None]
) -> None:
    catalog = ds.Catalog.index(urls, cache=cache)
    damage(Path((cache.find(catalog.files[0]) or catalog.files[0]).path), 20, 1)
    with ds.RecordReader(catalog, cache=cache) as reader:
        assert reader.read(np.arange(len(catalog))) == by_id
        until(lambda: cache.find(catalog.files[0]) is not None or not reader.read(np.arange(3)))


@pytest.mark.parametrize("kind", ["tfrecord", "tar"])
@pytest.mark.parametrize("on_corrupt", ["raise", "mask"])
def test_indexing_replaces_a_damaged_copy(
    store: RangeServer, urls: list[str], cache: FileCache, kind: str, on_corrupt: Any
) -> None:
    if kind == "tar":
        urls = [write_tar(store)]
    catalog = ds.Catalog.index(urls, cache=cache)
    rot(Path((cache.find(catalog.files[0]) or catalog.files[0]).path), 0)
    again = ds.Catalog.index(urls, cache=cache, on_corrupt=on_corrupt)
    assert (again.fingerprint, again.damage) == (catalog.fingerprint, ())
    assert cache.find(catalog.files[0]) is not None


def write_tar(store: RangeServer) -> str:
    with TarWriter(store.folder / "a.tar") as writer:
        for number in range(4):
            writer.write(str(number), {"x": bytes(5000)})
    return f"{store.url}/a.tar"


def test_a_changed_copy_is_found_without_checksums_of_its_format(
    store: RangeServer, cache: FileCache, caplog: pytest.LogCaptureFixture
) -> None:
    catalog = ds.Catalog.index(write_tar(store), cache=cache)
    (entry,) = catalog.files
    change(Path((cache.find(entry) or entry).path), 9000)
    later = FileCache(cache.folder)
    with ds.RecordReader(catalog, cache=later) as reader, ds.RecordReader(catalog) as plain:
        assert reader.read(np.arange(4)) == plain.read(np.arange(4))
        assert "it was changed" in caplog.text
        until(lambda: later.find(entry))


def test_a_copy_that_was_only_touched_is_used(store: RangeServer, urls: list[str], cache: FileCache) -> None:
    entry = describe_file(urls[0])
    copy = cache.fetch(entry)
    assert copy is not None
    os.utime(copy.path)
    store.reset()
    assert FileCache(cache.folder).fetch(entry) is not None
    assert store.bytes == 0
    place = Path(copy.path)  # compared by one process for all
    assert cache_note.noted_times(place) == cache_note.times(place.stat())


def test_a_copy_that_changes_within_a_run_is_made_again(urls: list[str], cache: FileCache) -> None:
    entry = describe_file(urls[0])
    until(lambda: cache.ask(entry))
    change(Path((cache.find(entry) or entry).path), 20)
    until(lambda: cache.ask(entry))
    assert cache.open().is_sound(entry)


def test_a_copy_whose_process_was_killed_before_its_note_is_made_again(urls: list[str], cache: FileCache) -> None:
    entry = describe_file(urls[0])
    copy = cache.fetch(entry)
    assert copy is not None
    cache_note.path_of(Path(copy.path)).unlink()
    assert FileCache(cache.folder, entry.size).fetch(entry) is not None


def test_damage_in_the_store_is_not_blamed_on_the_copy(store: RangeServer, urls: list[str], cache: FileCache) -> None:
    damaged = store.folder / urls[0].rpartition("/")[2]
    content = bytearray(damaged.read_bytes())
    content[-6] ^= 1
    damaged.write_bytes(content)
    catalog = ds.Catalog.index(urls, cache=cache)
    with ds.RecordReader(catalog, cache=cache) as reader, pytest.raises(ds.CorruptRecordError, match=urls[0]):
        reader.read(np.arange(len(catalog)))
    assert cache.find(catalog.files[0]) is not None


def test_a_new_version_of_a_file_is_another_file(store: RangeServer, urls: list[str], cache: FileCache) -> None:
    path = store.folder / urls[0].rpartition("/")[2]
    entry = describe_file(urls[0])
    assert cache.fetch(entry) is not None
    path.write_bytes(path.read_bytes()[::-1])
    changed = describe_file(urls[0])
    assert cache.find(changed) is None
    with pytest.raises(ds.ChangedDataError, match="was modified after it was indexed"):
        FileCache(Path(cache.folder).parent / "other").fetch(entry)


def test_of_files_without_a_version_no_copy_is_kept(
    store: RangeServer, urls: list[str], cache: FileCache, caplog: pytest.LogCaptureFixture
) -> None:
    store.tagged = False

    def records() -> list[bytes]:
        catalog = ds.Catalog.index(urls, cache=cache)
        with ds.RecordReader(catalog, cache=FileCache(cache.folder)) as reader:
            return reader.read(np.arange(len(catalog)))

    before, path = records(), store.folder / urls[0].rpartition("/")[2]
    others = [record[::-1] for record in before[:15]]  # of the first file: as long as those they replace
    with ds.TFRecordWriter(path) as writer:
        for record in others:
            writer.write(record)
    assert records() == [*others, *before[15:]]
    assert copies(Path(cache.folder)) == {}
    assert 1 <= caplog.text.count("sends neither an ETag") <= 3  # once for each `FileCache`


def test_a_removed_copy_does_no_harm(urls: list[str], cache: FileCache, by_id: list[bytes]) -> None:
    catalog = ds.Catalog.index(urls, cache=cache)
    with ds.RecordReader(catalog, cache=cache) as reader:
        assert reader.read(np.arange(len(catalog))) == by_id
        for name in copies(Path(cache.folder)):
            (Path(cache.folder) / "files" / name).unlink()
        assert reader.read(np.arange(len(catalog))) == by_id


def test_readers_are_sent_to_processes_with_their_cache(urls: list[str], cache: FileCache, by_id: list[bytes]) -> None:
    catalog = ds.Catalog.index(urls, cache=cache)
    reader = pickle.loads(pickle.dumps(ds.RecordReader(catalog, cache=cache)))
    assert (reader.cache.folder, reader.cache.limit) == (cache.folder, None)
    assert isinstance(reader._files.get(0), CachedFile)
    assert reader.read(np.arange(len(catalog))) == by_id
    reader.close()


def test_a_file_that_cannot_fit_removes_nothing(urls: list[str], tmp_path: Path) -> None:
    entries = [describe_file(url) for url in urls]
    limit = sum(entry.size for entry in entries)
    first = FileCache(tmp_path / "cache", limit)
    first.fetch_all(entries)
    first.close()
    opened = FileCache(tmp_path / "cache", limit).open()
    assert not opened.admit(FileEntry("http://host/large", limit + 1, "1"), limit + 1)
    assert sum(copies(tmp_path / "cache").values()) == limit


def test_what_is_promised_takes_room_before_it_is_written(tmp_path: Path) -> None:
    opened = FileCache(tmp_path / "cache", 4000).open()
    entries = [FileEntry(f"http://host/{number}", 3000, "1") for number in range(2)]
    with opened.making(entries[0], wait=False):
        assert [opened.admit(entry, 3000) for entry in entries] == [True, False]


def test_a_copy_that_another_process_does_not_finish_is_not_waited_for_for_ever(
    urls: list[str], cache: FileCache, catalog: ds.Catalog, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(file_cache, "_SILENT_SECONDS", 0.1)
    monkeypatch.setattr(cache_folder, "_LOCK_SECONDS", 0.2)
    ready, killed = SPAWN.Event(), describe_file(urls[0])
    other = SPAWN.Process(target=_hold_part, args=(cache.folder, killed, ready))
    other.start()
    assert ready.wait(DEADLINE_S)
    assert ds.Catalog.index(urls, cache=cache).fingerprint == catalog.fingerprint
    other.kill()
    other.join(DEADLINE_S)
    assert f"waiting for another process that fetches {urls[0]}" in caplog.text
    assert f"{urls[0]} is read from the store" in caplog.text


@pytest.mark.parametrize("lost", ["locks", "files", "locks/admission"])
def test_a_folder_that_is_lost_ends_nothing(
    urls: list[str], cache: FileCache, catalog: ds.Catalog, tmp_path: Path, lost: str, caplog: Any
) -> None:
    cache.open()
    place = Path(cache.folder, lost)
    if place.is_dir():
        shutil.rmtree(place)
        place.touch()
    else:
        place.unlink()
        place.mkdir()
    opened = open_catalog(urls, cache_dir=tmp_path / "catalogs", file_cache=cache)
    assert opened.fingerprint == catalog.fingerprint
    assert f"cannot be kept in {cache.folder}" in caplog.text
    assert "catalogs cannot be kept" not in caplog.text


def _others(folder: Path) -> None:
    folder.mkdir()
    (folder / "thesis.tex").touch()


def _another_layout(folder: Path) -> None:
    folder.mkdir()
    (folder / "data_sharding-cache").write_text("data_sharding cache 99\n")


@pytest.mark.parametrize(
    ("make", "limit", "fact", "hint"),
    [
        (_others, None, "holds thesis.tex, and is not a cache", "name a new folder"),
        (_another_layout, None, "says that it is 'data_sharding cache 99'", "another folder"),
        (Path.touch, None, "cannot be used: File exists", "can be made and written"),
        (Path.mkdir, 2**60, "has room for", "on a larger disk, or allow less"),
    ],
)
def test_folders_that_are_refused(
    tmp_path: Path, make: Callable[[Path], None], limit: int | None, fact: str, hint: str
) -> None:
    make(tmp_path / "cache")
    with pytest.raises(ds.CacheError) as caught:
        FileCache(tmp_path / "cache", limit).open()
    assert fact in caught.value.fact
    assert hint in caught.value.hint


def test_a_full_disk_ends_nothing(urls: list[str], tmp_path: Path) -> None:
    """A limit on the size of files is the full disk that a test can have: to write beyond it is an OSError, too."""
    with SPAWN.Pool(1) as pool:
        records, kept = pool.apply(_read_on_a_full_disk, (urls, str(tmp_path / "cache")))
    assert (records, kept) == (57, [])
    assert not parts(tmp_path / "cache")
    assert (tmp_path / "cache" / "used").read_text() == "0\n"


def _read_on_a_full_disk(urls: list[str], folder: str) -> tuple[int, list[str]]:
    cache = FileCache(folder)
    cache.open()
    smallest = min(describe_file(url).size for url in urls)
    resource.setrlimit(resource.RLIMIT_FSIZE, (smallest // 2, smallest // 2))
    catalog = ds.Catalog.index(urls, cache=cache)
    with ds.RecordReader(catalog, cache=cache) as reader:
        records = reader.read(np.arange(len(catalog)))
        until(lambda: not cache._threads)
        return len(records), sorted(copies(Path(folder)))
