"""TFRecord files: what is written is found again, whole or not at all, and damage is named."""

from __future__ import annotations

import gzip
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import data_sharding as ds
from data_sharding.formats.tfrecord import masked_crc, payload_crcs


def write(path: Path, records: list[bytes]) -> Path:
    with ds.TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)
    return path


def cut(path: Path) -> list[tuple[bytes, int]]:
    """The payloads and CRCs that scan() finds."""
    data = path.read_bytes()
    columns = (column.tolist() for column in ds.scan(path, check_data=True)[:3] if column is not None)
    return [(data[offset : offset + length], crc) for offset, length, crc in zip(*columns, strict=True)]


def test_masked_crc_of_known_bytes() -> None:
    # CRC-32C of "123456789" is 0xe3069283 (RFC 3720 catalogue value); masked by hand.
    assert masked_crc(b"123456789") == ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) & 0xFFFFFFFF


@given(st.lists(st.binary(max_size=50)))
def test_batch_of_crcs_equals_single_ones(payloads: list[bytes]) -> None:
    assert payload_crcs(payloads).tolist() == [masked_crc(payload) for payload in payloads]


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=20))
def test_scan_finds_what_was_written(records: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "a.tfrecord", records)
        assert cut(path) == [(record, masked_crc(record)) for record in records]
        assert os.listdir(folder) == ["a.tfrecord"]


def test_every_truncation_is_named_or_leaves_whole_records(tmp_path: Path) -> None:
    records = [b"first", b"", b"the third one"]
    whole = write(tmp_path / "whole", records).read_bytes()
    ends = [sum(len(record) + 16 for record in records[:count]) for count in range(4)]
    path = tmp_path / "cut"
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        if length in ends:
            assert [payload for payload, _ in cut(path)] == records[: ends.index(length)]
        else:
            with pytest.raises(ds.CorruptRecordError, match="ends inside record") as caught:
                ds.scan(path)
            assert (caught.value.path, caught.value.offset) == (str(path), max(end for end in ends if end < length))
            assert str(path) in caught.value.fact
            assert str(caught.value.offset) in caught.value.fact


def test_empty_missing_and_special_files_hold_no_data(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "fifo")
    for name, message in (("empty", "is empty"), ("absent", "No such file"), ("fifo", "not a regular file")):
        with pytest.raises(ds.MissingDataError, match=message):
            ds.scan(tmp_path / name)


def test_gzip_is_told_from_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(gzip.compress(write(tmp_path / "plain", [b"data"]).read_bytes()))
    with pytest.raises(ds.CorruptRecordError, match="random access") as caught:
        ds.scan(path)
    assert "decompress it" in caught.value.hint


def test_a_record_whose_length_looks_like_gzip_is_read(tmp_path: Path) -> None:
    record = bytes(0x8B1F)
    path = write(tmp_path / "a", [record])
    assert path.read_bytes()[:2] == b"\x1f\x8b"
    assert cut(path)[0][0] == record


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    with pytest.raises(ds.CorruptRecordError, match="does not match its CRC") as caught:
        ds.scan(path)
    assert caught.value.offset == 0
    assert "uncompressed TFRecord" in caught.value.hint


def test_failed_writing_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tfrecord", [b"old"])
    before = path.read_bytes()
    with pytest.raises(TypeError), ds.TFRecordWriter(path) as writer:
        writer.write("no bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.tfrecord"]


def test_a_refused_value_leaves_no_half_record(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    with ds.TFRecordWriter(path) as writer:
        writer.write(b"good")
        with pytest.raises(TypeError):
            writer.write("no bytes")  # type: ignore[arg-type]
        writer.write(b"good too")
    assert [payload for payload, _ in cut(path)] == [b"good", b"good too"]


def test_writing_outside_the_block_is_refused(tmp_path: Path) -> None:
    writer = ds.TFRecordWriter(tmp_path / "a")
    with pytest.raises(ds.PlanError, match="not open"):
        writer.write(b"data")
    with writer:
        writer.write(b"data")
    with pytest.raises(ds.PlanError, match="not open"):
        writer.write(b"more")


@given(st.integers(1, 6), st.integers(0, 15))
def test_shards_are_dealt_round_robin(num_shards: int, extra: int) -> None:
    records = [bytes([number]) for number in range(num_shards + extra)]
    with tempfile.TemporaryDirectory() as folder:
        paths = ds.write_shards(Path(folder) / "new", "digits", iter(records), num_shards)
        assert [path.name for path in paths] == [
            f"digits-{part:05d}-of-{num_shards:05d}.tfrecord" for part in range(num_shards)
        ]
        for part, path in enumerate(paths):
            assert [payload for payload, _ in cut(path)] == records[part::num_shards]


def test_failing_source_leaves_no_shard(tmp_path: Path) -> None:
    def source():  # type: ignore[no-untyped-def]
        yield b"one"
        raise RuntimeError("source failed")

    with pytest.raises(RuntimeError, match="source failed"):
        ds.write_shards(tmp_path, "digits", source(), 3)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("count", "num_shards"), [(3, 0), (3, -1), (2, 3), (0, 1)])
def test_impossible_numbers_of_shards_are_refused(tmp_path: Path, count: int, num_shards: int) -> None:
    with pytest.raises(ds.PlanError):
        ds.write_shards(tmp_path, "digits", [b"x"] * count, num_shards)
    assert os.listdir(tmp_path) == []


def test_a_second_set_of_shards_beside_the_first_is_refused(tmp_path: Path) -> None:
    ds.write_shards(tmp_path, "digits", [b"a", b"b"], 2)
    ds.write_shards(tmp_path, "digits", [b"c", b"d"], 2)
    ds.write_shards(tmp_path, "digits-test", [b"e"], 1)
    with pytest.raises(ds.PlanError, match="of-00002"):
        ds.write_shards(tmp_path, "digits", [b"a", b"b", b"c"], 3)
    assert len(ds.Catalog.index(tmp_path)) == 3
