"""The catalog: finds every record once, names data by content, survives its own storage."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import data_sharding as ds


def contents(catalog: ds.Catalog) -> list[bytes]:
    with ds.RecordReader(catalog) as reader:
        return reader.read(np.arange(len(catalog)))


def equal(one: ds.Catalog, other: ds.Catalog) -> bool:
    names = ("file_ids", "offsets", "lengths", "crcs")
    same_arrays = all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)
    return same_arrays and (one.files, one.fingerprint) == (other.files, other.fingerprint)


def test_folder_glob_and_list_lead_to_the_same_records(
    data_folder: Path, catalog: ds.Catalog, by_id: list[bytes]
) -> None:
    assert contents(catalog) == by_id
    files = sorted(data_folder.iterdir())
    for paths in (str(data_folder), data_folder / "*.tfrecord", f"{data_folder}/**/digits-*", files):
        assert equal(ds.Catalog.index(paths), catalog)
    assert contents(ds.Catalog.index(files[2])) == by_id[29:43]
    assert contents(ds.Catalog.index([files[1], files[0]])) == by_id[15:29] + by_id[:15]


def test_columns_have_the_promised_types_and_are_read_only(catalog: ds.Catalog) -> None:
    for name, dtype in (("file_ids", "i4"), ("offsets", "i8"), ("lengths", "i8"), ("crcs", "u4")):
        column = getattr(catalog, name)
        assert column.dtype == dtype
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1


def test_sizes_and_descriptions(catalog: ds.Catalog, by_id: list[bytes]) -> None:
    assert len(catalog) == len(by_id)
    assert catalog.total_bytes == sum(map(len, by_id))
    assert catalog.describe(0) == f"{catalog.files[0].path} @ byte 0"
    assert catalog.describe(1) == f"{catalog.files[0].path} @ byte {16 + len(by_id[0])}"
    for outside in (-1, len(catalog)):
        with pytest.raises(ds.PlanError, match=f"no record {outside}"):
            catalog.describe(outside)


def test_a_folder_means_its_own_record_files_only(tmp_path: Path) -> None:
    ds.write_shards(tmp_path / "below", "a", [b"below"], 1)
    (tmp_path / "notes.txt").write_text("no record")
    (tmp_path / "folder.tfrecord").mkdir()
    for name in ("b.tfrecords", "a.tfrecord"):
        with ds.TFRecordWriter(tmp_path / name) as writer:
            writer.write(name.encode())
    assert contents(ds.Catalog.index(tmp_path)) == [b"a.tfrecord", b"b.tfrecords"]


def test_a_name_with_glob_characters_is_taken_as_it_is(tmp_path: Path) -> None:
    with ds.TFRecordWriter(tmp_path / "a[1]*.tfrecord") as writer:
        writer.write(b"odd")
    assert contents(ds.Catalog.index(tmp_path / "a[1]*.tfrecord")) == [b"odd"]


def test_nothing_to_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.tfrecord").touch()
    (tmp_path / "folder").mkdir()
    cases = {
        "does not exist": tmp_path / "absent",
        "No file matches": tmp_path / "*.absent",
        "holds no file": tmp_path / "folder",
        "is empty": tmp_path / "empty.tfrecord",
        "No data path": [],
    }
    for message, paths in cases.items():
        with pytest.raises(ds.MissingDataError, match=message):
            ds.Catalog.index(paths)


def test_the_same_file_twice_is_refused(data_folder: Path, tmp_path: Path) -> None:
    first = sorted(data_folder.iterdir())[0]
    link = tmp_path / "link.tfrecord"
    link.symlink_to(first)
    overlapping = (
        [first, first],
        [data_folder, first],
        [f"{data_folder}/*-00001-*", f"{data_folder}/*"],
        [first, link],
    )
    for paths in overlapping:
        with pytest.raises(ds.PlanError, match="twice"):
            ds.Catalog.index(paths)


def test_a_copy_has_the_same_fingerprint(data_folder: Path, catalog: ds.Catalog, tmp_path: Path) -> None:
    copy = ds.Catalog.index(shutil.copytree(data_folder, tmp_path / "copy"))
    assert copy.files != catalog.files
    assert copy.fingerprint == catalog.fingerprint


@given(st.data())
def test_any_change_changes_the_fingerprint(data: st.DataObject) -> None:
    records = data.draw(st.lists(st.binary(max_size=8), min_size=2, max_size=8))
    other = data.draw(st.lists(st.binary(max_size=8), min_size=2, max_size=8))
    with tempfile.TemporaryDirectory() as name:
        prints = []
        for part, content in (("one", records), ("other", other)):
            ds.write_shards(Path(name) / part, "a", content, 2)
            prints.append(ds.Catalog.index(Path(name) / part).fingerprint)
    assert (prints[0] == prints[1]) == (records == other)


def test_names_and_order_of_files_are_part_of_the_fingerprint(data_folder: Path, tmp_path: Path) -> None:
    files = sorted(data_folder.iterdir())
    renamed = shutil.copy(files[0], tmp_path / "renamed.tfrecord")
    prints = [ds.Catalog.index(paths).fingerprint for paths in (files, files[::-1], files[:1], renamed, files[:2])]
    assert len(set(prints)) == len(prints)


def test_saved_and_loaded_catalogs_are_equal(catalog: ds.Catalog, tmp_path: Path, by_id: list[bytes]) -> None:
    catalog.save(tmp_path / "catalog.npz")
    loaded = ds.Catalog.load(tmp_path / "catalog.npz")
    assert equal(loaded, catalog)
    assert contents(loaded) == by_id
    assert os.listdir(tmp_path) == ["catalog.npz"]


@settings(max_examples=200)
@given(st.data())
def test_a_damaged_catalog_is_refused_or_harmless(catalog: ds.Catalog, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "catalog.npz"
        catalog.save(path)
        content = bytearray(path.read_bytes())
        if data.draw(st.booleans()):
            content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        else:
            del content[data.draw(st.integers(0, len(content) - 1)) :]
        path.write_bytes(content)
        try:
            loaded = ds.Catalog.load(path)
        except ds.CatalogError:
            return
        assert equal(loaded, catalog)


def test_a_catalog_whose_directory_points_before_the_file_is_damaged(catalog: ds.Catalog, tmp_path: Path) -> None:
    catalog.save(tmp_path / "catalog.npz")
    content = bytearray((tmp_path / "catalog.npz").read_bytes())
    begin = int.from_bytes(content[-6:-2], "little")  # of its directory: the first member then begins at -1
    content[-6:-2] = (begin + 1).to_bytes(4, "little")
    (tmp_path / "catalog.npz").write_bytes(content)
    with pytest.raises(ds.CatalogError, match="cannot be used"):
        ds.Catalog.load(tmp_path / "catalog.npz")


def manifest(**changes: object) -> np.ndarray:
    files = [["/a", 10**6, "0"]] * 4
    about = {"version": 2, "format": "tfrecord", "options": {}, "fingerprint": "", "files": files, "damage": []}
    content = {**about, **changes}
    return np.frombuffer(json.dumps(content).encode(), np.uint8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offsets": np.zeros(57, np.int64)}, "outside their files"),
        ({"lengths": np.full(57, -1)}, "outside their files"),
        ({"lengths": np.full(57, 10**9)}, "outside their files"),
        ({"file_ids": np.full(57, 4, np.int32)}, "does not list"),
        ({"file_ids": np.full(57, -1, np.int32)}, "does not list"),
        ({"crcs": np.zeros(56, np.uint32)}, "differ in length or type"),
        ({"crcs": np.zeros(57, np.int64)}, "differ in length or type"),
        ({"crcs": np.zeros(57, np.uint32)}, "does not match its fingerprint"),
        ({"manifest": manifest()}, "does not match its fingerprint"),
        ({"manifest": manifest(version=9)}, "written as version 9"),
        ({"manifest": manifest(format="x")}, "no record format 'x'"),
        ({"manifest": np.frombuffer(b"[]", np.uint8)}, "TypeError"),
        ({"manifest": np.array([{"pickled": "object"}])}, "allow_pickle=False"),
    ],
)
def test_a_forged_catalog_is_refused(
    catalog: ds.Catalog, tmp_path: Path, change: dict[str, np.ndarray], message: str
) -> None:
    path = tmp_path / "catalog.npz"
    catalog.save(path)
    with np.load(path, allow_pickle=False) as members:
        forged = {**members, **change}
    np.savez(path, **forged)
    with pytest.raises(ds.CatalogError, match=message):
        ds.Catalog.load(path)


def test_a_missing_catalog_is_named(tmp_path: Path) -> None:
    with pytest.raises(ds.MissingDataError, match=r"absent\.npz"):
        ds.Catalog.load(tmp_path / "absent.npz")


def test_changes_after_indexing_are_noticed(data_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(data_folder, tmp_path / "copy"))
    catalog = ds.Catalog.index(folder)
    catalog.verify_unchanged()
    file = sorted(folder.iterdir())[2]
    os.utime(file, ns=(0, int(catalog.files[2].version) + 1))
    with pytest.raises(ds.ChangedDataError, match="modified") as caught:
        catalog.verify_unchanged()
    assert str(file) in caught.value.fact
    with open(file, "ab") as appended:
        appended.write(b"more")
    with pytest.raises(ds.ChangedDataError, match="bytes when it was indexed"):
        catalog.verify_unchanged()
