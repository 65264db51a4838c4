"""No damaged byte is ever returned as data."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import data_sharding as ds
from data_sharding.catalog import OnCorrupt
from data_sharding.catalog.cache import open_catalog
from data_sharding.convert import convert


def flip(path: Path, position: int, bits: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= bits
    path.write_bytes(data)


def all_ids(catalog: ds.Catalog) -> np.ndarray:
    return np.arange(len(catalog))


def index_and_read(folder: Path) -> list[bytes]:
    catalog = ds.Catalog.index(folder)
    with ds.RecordReader(catalog) as reader:
        return reader.read(all_ids(catalog))


@settings(max_examples=150)
@given(st.data())
def test_a_flipped_byte_is_found_and_its_record_named(
    data_folder: Path, catalog: ds.Catalog, data: st.DataObject
) -> None:
    victim = data.draw(st.integers(0, 3))
    position = data.draw(st.integers(0, catalog.files[victim].size - 1))
    bits = data.draw(st.integers(1, 255))
    in_file = np.flatnonzero(catalog.file_ids == victim)
    record = in_file[np.flatnonzero(catalog.offsets[in_file] - 12 <= position)[-1]]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(shutil.copytree(data_folder, name, dirs_exist_ok=True))
        path = folder / Path(catalog.files[victim].path).name
        flip(path, position, bits)
        with pytest.raises(ds.CorruptRecordError) as caught:
            index_and_read(folder)
        with pytest.raises(ds.CorruptRecordError) as checked:
            ds.Catalog.index(folder, check_data=True)
    for error in (caught.value, checked.value):
        assert (error.path, error.offset) == (str(path), catalog.frame_offset(record))
        assert str(path) in error.fact
        assert f"byte offset {error.offset}" in error.fact


def test_damage_after_indexing_under_the_old_time_is_found(tmp_path: Path) -> None:
    (path,) = ds.write_shards(tmp_path, "a", [b"zero", b"one", b"two"], 1)
    catalog = ds.Catalog.index(path)
    flip(path, int(catalog.offsets[1]) + 2, 0x10)
    entry = catalog.files[0]
    os.utime(path, ns=(int(entry.version), int(entry.version)))
    with ds.RecordReader(catalog) as reader:
        assert reader.read(np.array([0, 2])) == [b"zero", b"two"]
        with pytest.raises(ds.CorruptRecordError, match="Record 1,") as caught:
            reader.read(np.array([2, 1, 0]))
    assert (caught.value.path, caught.value.offset) == (str(path), catalog.frame_offset(1))


def test_damage_while_reading_under_a_new_time_is_a_change(tmp_path: Path) -> None:
    (path,) = ds.write_shards(tmp_path, "a", [b"zero", b"one", b"two"], 1)
    catalog = ds.Catalog.index(path)
    with ds.RecordReader(catalog) as reader:
        reader.read(all_ids(catalog))
        flip(path, int(catalog.offsets[1]) + 2, 0x10)
        os.utime(path, ns=(0, 0))
        with pytest.raises(ds.ChangedDataError, match="modified"):
            reader.read(all_ids(catalog))


def test_every_truncation_after_indexing_is_a_change(tmp_path: Path) -> None:
    (path,) = ds.write_shards(tmp_path, "a", [bytes(3000), b"one", b"two" * 2000], 1)
    catalog = ds.Catalog.index(path)
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole)
        os.utime(path, ns=(0, int(catalog.files[0].version)))
        with ds.RecordReader(catalog) as before, ds.RecordReader(catalog) as after:
            before.read(all_ids(catalog))
            os.truncate(path, length)
            for reader in (before, after):
                with pytest.raises(ds.ChangedDataError, match=str(path)):
                    reader.read(all_ids(catalog))


def test_a_file_that_vanished_is_a_change(tmp_path: Path) -> None:
    (path,) = ds.write_shards(tmp_path, "a", [b"zero"], 1)
    catalog = ds.Catalog.index(path)
    path.unlink()
    with ds.RecordReader(catalog) as reader, pytest.raises(ds.ChangedDataError, match="cannot be reached"):
        reader.read(all_ids(catalog))
    with pytest.raises(ds.ChangedDataError, match="cannot be reached"):
        catalog.verify_unchanged()


def with_lost_files(folder: Path) -> Path:
    """Three shards of four records; then one without content, one that leads nowhere, one that is something else."""
    ds.write_shards(folder, "a", [bytes([number]) * 100 for number in range(12)], 3)
    (folder / "b.tfrecord").touch()
    (folder / "c.tfrecord").symlink_to("absent")
    (folder / "d.tfrecord").write_bytes(b"{}" * 50)
    return folder


REASONS = [("b.tfrecord", "is empty"), ("c.tfrecord", "is a link to nothing"), ("d.tfrecord", "does not match its CRC")]


@pytest.mark.parametrize("on_corrupt", ["mask", "quarantine"])
@pytest.mark.parametrize("named", ["folder", "glob", "files"])
def test_files_without_records_follow_the_policy(tmp_path: Path, on_corrupt: OnCorrupt, named: str) -> None:
    folder = with_lost_files(tmp_path)
    paths = {"folder": folder, "glob": str(folder / "*.tfrecord"), "files": sorted(folder.iterdir())}[named]
    catalog = ds.Catalog.index(paths, on_corrupt=on_corrupt)
    assert len(catalog) == 12
    assert catalog.crcs is not None
    for damage, (name, reason) in zip(catalog.damage, REASONS, strict=True):
        assert (damage.path, damage.offset) == (str(folder / name), 0)
        assert name in damage.reason
        assert reason in damage.reason
    # What nothing is known of counts like the others' mean.
    sizes = [file.size for file in catalog.files if file.size]
    assert catalog.lost_bytes == 100 + 2 * (sum(sizes) // len(sizes))
    catalog.verify_unchanged()
    with ds.RecordReader(catalog) as reader:
        assert sorted(reader.read(all_ids(catalog))) == [bytes([number]) * 100 for number in range(12)]


def test_files_without_records_are_refused_by_default(tmp_path: Path) -> None:
    folder = with_lost_files(tmp_path)
    for name, reason in REASONS:
        with pytest.raises((ds.MissingDataError, ds.CorruptRecordError), match=f"(?s){name}.* {reason}"):
            ds.Catalog.index([*folder.glob("a*"), folder / name])
        with pytest.raises((ds.MissingDataError, ds.CorruptRecordError), match=f"(?s){name}.* {reason}"):
            ds.Catalog.index(folder / name, on_corrupt="mask")


def test_a_lost_file_that_comes_back_is_indexed(tmp_path: Path) -> None:
    folder, cache = with_lost_files(tmp_path / "data"), tmp_path / "cache"
    first = open_catalog(folder, on_corrupt="mask", cache_dir=cache)
    again = open_catalog(folder, on_corrupt="mask", cache_dir=cache)
    assert (len(first), again.fingerprint, again.damage) == (12, first.fingerprint, first.damage)
    with ds.TFRecordWriter(folder / "absent") as writer:
        writer.write(b"back")
    with pytest.raises(ds.ChangedDataError, match="c.tfrecord"):
        first.verify_unchanged()
    assert len(open_catalog(folder, on_corrupt="mask", cache_dir=cache)) == 13


def test_an_empty_image_is_left_out(tmp_path: Path) -> None:
    for name in ("a/1.jpg", "a/2.jpg", "b/1.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "a" / "2.jpg").write_bytes(b"")
    catalog = ds.Catalog.index(tmp_path, on_corrupt="mask")
    assert catalog.labels is not None
    assert catalog.labels.tolist() == [0, 1]
    assert [damage.path for damage in catalog.damage] == [str(tmp_path / "a" / "2.jpg")]
    assert catalog.lost_bytes == 7


@pytest.mark.parametrize("suffix", ["npz", "parquet", "tar", "rec"])
def test_a_file_of_garbage_is_left_out(tmp_path: Path, suffix: str) -> None:
    ds.write_shards(tmp_path / "in", "a", [ds.example.encode({"n": number}) for number in range(2)], 1)
    if suffix == "npz":
        np.savez(tmp_path / "a.npz", x=np.zeros((2, 2)), y=np.arange(2))
    elif suffix == "parquet":
        table = pytest.importorskip("pyarrow").table({"x": [b"one", b"two"], "y": [0, 1]})
        pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "a.parquet")
    else:
        convert(tmp_path / "in", tmp_path, 1, to={"tar": "tar", "rec": "recordio"}[suffix])
    (tmp_path / f"b.{suffix}").write_bytes(b"\x93PK\x00" * 300)
    files = sorted(tmp_path.glob(f"*.{suffix}"))
    with pytest.raises(ds.CorruptRecordError):
        ds.Catalog.index(files)
    catalog = ds.Catalog.index(files, on_corrupt="mask")
    assert (len(catalog), {damage.path for damage in catalog.damage}) == (2, {str(tmp_path / f"b.{suffix}")})
    assert (catalog.labels is not None) == (suffix in ("npz", "parquet"))
    assert catalog.lost_bytes >= 1200


def test_an_array_that_does_not_match_its_checksum_is_left_out(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(100))
    np.savez(tmp_path / "b.npz", x=np.arange(100))
    flip(tmp_path / "b.npz", 500, 1)
    assert len(ds.Catalog.index(tmp_path, check_data=True, on_corrupt="mask")) == 100
