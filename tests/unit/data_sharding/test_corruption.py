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
