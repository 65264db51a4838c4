"""The text index that DALI and the tfrecord package use: written as they do, believed only where the data agrees."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import data_sharding as ds
from data_sharding.formats import write_idx
from data_sharding.formats.record_format import RecordIndex
from data_sharding.formats.tfrecord import idx_path, read_idx
from data_sharding.storage import describe_file, open_source


def read(index: Path, data: Path) -> RecordIndex:
    return read_idx(index, str(data), open_source(describe_file(str(data))))


def frames(records: list[bytes]) -> str:
    """What NVIDIA's tfrecord2idx prints: it walks the file and prints where each frame begins, and its size."""
    lines, at = [], 0
    for record in records:
        lines.append(f"{at} {len(record) + 16}\n")
        at += len(record) + 16
    return "".join(lines)


@pytest.fixture
def data(tmp_path: Path, data_folder: Path) -> Path:
    return Path(shutil.copy(sorted(data_folder.iterdir())[0], tmp_path / "a.tfrecord"))


def test_it_is_written_as_others_write_it(data_folder: Path, payloads: list[bytes], tmp_path: Path) -> None:
    written = write_idx(ds.Catalog.index(data_folder), tmp_path / "made")
    assert [path.name for path in written] == [f"{file.name}.idx" for file in sorted(data_folder.iterdir())]
    assert [path.read_text() for path in written] == [frames(payloads[shard::4]) for shard in range(4)]


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=20))
def test_reading_it_equals_scanning(records: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (data,) = ds.write_shards(folder, "a", records, 1)
        (index,) = write_idx(ds.Catalog.index(data))
        assert idx_path(str(data)) == str(index)
        for one, other in zip(read(index, data)[:3], ds.scan(data)[:3], strict=True):
            assert one is not None
            assert other is not None
            assert one.dtype == other.dtype
            assert np.array_equal(one, other)


def test_both_names_are_found(data: Path) -> None:
    assert idx_path(str(data)) is None
    data.with_name("a.idx").write_text("0 1\n")
    assert idx_path(str(data)) == str(data.with_name("a.idx"))
    data.with_name("a.tfrecord.idx").write_text("0 1\n")
    assert idx_path(str(data)) == str(data.with_name("a.tfrecord.idx"))
    assert idx_path("s3://bucket/a.tfrecord") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is empty"),
        ("0 16\n17\n", "is not an index"),
        ("0\n16 17 18\n", "is not an index"),
        ("0\n16\n", "not every line holds two numbers"),
        ("0 1.5\n", "is not an index"),
        ("# 0 16\n", "is not an index"),
        ("0 -16\n", "not every line holds two numbers"),
        ("0 sixteen\n", "is not an index"),
        ("0 99999999999999999999\n", "is not an index"),
        ("0 16\n", "do not cover"),
    ],
)
def test_nonsense_is_refused(data: Path, text: str, message: str) -> None:
    index = data.with_name("a.idx")
    index.write_text(text)
    with pytest.raises(ds.CatalogError, match=message):
        read(index, data)


@given(st.data())
def test_an_index_that_differs_in_any_record_is_refused(data_folder: Path, draw: st.DataObject) -> None:
    file = sorted(data_folder.iterdir())[1]
    right = ds.scan(file)
    sizes = (right.lengths + 16).tolist()
    one, other = draw.draw(st.lists(st.integers(0, len(sizes) - 1), min_size=2, max_size=2, unique=True))
    sizes[one] += (moved := draw.draw(st.integers(1, 300)))
    sizes[other] -= moved
    at = np.cumsum([0, *sizes])
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "a.idx"
        index.write_text("".join(f"{begin} {size}\n" for begin, size in zip(at[:-1].tolist(), sizes, strict=True)))
        with pytest.raises(ds.CatalogError, match=r"does not describe|not every line"):
            read(index, file)


@pytest.mark.parametrize("byte", [0, 7, 8, 11])
def test_damage_in_the_framing_is_seen(data: Path, byte: int) -> None:
    (index,) = write_idx(ds.Catalog.index(data))
    header = int(ds.scan(data).offsets[1]) - 12
    content = bytearray(data.read_bytes())
    content[header + byte] ^= 1
    data.write_bytes(content)
    with pytest.raises(ds.CatalogError, match="length"):
        read(index, data)


def test_what_cannot_be_written_is_refused(data: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    twin = shutil.copy(data, tmp_path / "other" / "a.tfrecord")
    with pytest.raises(ds.PlanError, match="have one name"):
        write_idx(ds.Catalog.index([data, twin]), tmp_path / "made")
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(ds.PlanError, match="its index would hide that"):
        write_idx(ds.Catalog.index(data, on_corrupt="mask"))
    with pytest.raises(ds.MissingDataError, match="cannot be opened"):
        read(tmp_path / "absent.idx", Path(twin))
