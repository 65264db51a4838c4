"""RecordIO files: what is written is found again; other implementations' files are read; damage is named."""

from __future__ import annotations

import gzip
import json
import os
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import data_sharding as ds
from data_sharding.formats.recordio import MAGIC_BYTES, Multipart, RecordIOFormat, decode_image_record, split
from data_sharding.formats.writers import RecordIOWriter

FIXTURES = Path(__file__).parents[1] / "fixtures"
MULTIPART = pytest.mark.parametrize("multipart", ["dmlc", "sagemaker"])

payloads_with_magic = st.lists(
    st.one_of(st.binary(max_size=9), st.just(MAGIC_BYTES), st.just(b"abcd"), st.just(MAGIC_BYTES[:3])), max_size=6
).map(b"".join)


def write(path: Path, records: list[bytes], multipart: Multipart = "dmlc") -> Path:
    with RecordIOWriter(path, multipart) as writer:
        for record in records:
            writer.write(record)
    return path


def read(path: Path, multipart: Multipart = "dmlc") -> list[bytes]:
    catalog = ds.Catalog.index(path, format=RecordIOFormat(multipart=multipart))
    with ds.RecordReader(catalog) as reader:
        return reader.read(np.arange(len(catalog)))


def part(cflag: int, data: bytes) -> bytes:
    return MAGIC_BYTES + struct.pack("<I", cflag << 29 | len(data)) + data + bytes(-len(data) % 4)


@MULTIPART
@given(records=st.lists(payloads_with_magic, min_size=1, max_size=8))
def test_what_is_written_is_read(multipart: Multipart, records: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "a.rec", records, multipart)
        assert read(path, multipart) == records
        assert read(path, "dmlc") == records
        assert os.listdir(folder) == ["a.rec"]


@given(payloads_with_magic)
def test_no_part_holds_the_magic_number_where_a_reader_would_look_for_it(payload: bytes) -> None:
    parts = split(payload)
    assert MAGIC_BYTES.join(parts) == payload
    assert all(part[i : i + 4] != MAGIC_BYTES for part in parts for i in range(0, len(part), 4))


def test_records_of_mxnet_are_read_and_written_byte_for_byte(tmp_path: Path) -> None:
    path = FIXTURES / "mxnet.rec"
    expected = [bytes.fromhex(item) for item in json.loads((FIXTURES / "mxnet.json").read_text())]
    assert read(path) == expected
    assert write(tmp_path / "ours.rec", expected).read_bytes() == path.read_bytes()


@MULTIPART
def test_records_of_sagemaker_are_read_and_written_byte_for_byte(tmp_path: Path, multipart: Multipart) -> None:
    path = FIXTURES / "sagemaker.recordio"
    expected = [bytes.fromhex(item) for item in json.loads((FIXTURES / "sagemaker.json").read_text())]
    assert expected[2].find(MAGIC_BYTES) % 4 == 0
    assert read(path, multipart) == expected
    assert write(tmp_path / "ours", expected, "sagemaker").read_bytes() == path.read_bytes()
    assert write(tmp_path / "split", expected, "dmlc").read_bytes() != path.read_bytes()


def test_parts_are_joined_as_asked(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    path.write_bytes(part(0, b"one") + part(1, b"abcd") + part(2, b"") + part(3, b"end") + part(0, b"last"))
    assert read(path) == [b"one", b"abcd" + MAGIC_BYTES * 2 + b"end", b"last"]
    assert read(path, "sagemaker") == [b"one", b"abcdend", b"last"]


def test_every_truncation_is_named_or_leaves_whole_records(tmp_path: Path) -> None:
    records = [b"first", b"", b"abcd" + MAGIC_BYTES + MAGIC_BYTES + b"x", b"last"]
    whole = write(tmp_path / "whole", records).read_bytes()
    index = ds.Catalog.index(tmp_path / "whole", format="recordio")
    ends = [0, *(index.offsets + index.lengths).tolist()]
    path = tmp_path / "cut"
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        if length in ends:
            assert read(path) == records[: ends.index(length)]
            continue
        with pytest.raises(ds.CorruptRecordError, match="ends inside record") as caught:
            ds.Catalog.index(path, format="recordio")
        assert (caught.value.path, caught.value.offset) == (str(path), max(end for end in ends if end < length))
        if length > ends[1]:
            kept = ds.Catalog.index(path, format="recordio", on_corrupt="mask")
            assert len(kept) == sum(0 < end < length for end in ends)


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        (b"\0\0\0\0" + bytes(8), "instead of 0a23d7ce"),
        (part(2, b"abcd"), "whose start is missing"),
        (part(3, b"abcd"), "whose start is missing"),
        (part(1, b"abcd") + part(0, b"x"), "is another record"),
        (part(1, b"abcd") + part(1, b"x"), "starts another record"),
        (part(5, b"abcd"), "means nothing"),
        (part(1, b"abcd"), "last part is missing"),
    ],
)
def test_lost_framing_keeps_what_came_before(tmp_path: Path, tail: bytes, message: str) -> None:
    path = tmp_path / "a.rec"
    path.write_bytes(part(0, b"good") + tail)
    with pytest.raises(ds.CorruptRecordError, match=message) as caught:
        ds.Catalog.index(path)
    assert caught.value.offset >= 12
    assert f"byte offset {caught.value.offset}" in caught.value.fact
    catalog = ds.Catalog.index(path, on_corrupt="quarantine")
    assert len(catalog) == len(catalog.damage) == 1


def test_other_files_are_refused_even_where_damage_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    with pytest.raises(ds.CorruptRecordError, match="is not a RecordIO file"):
        ds.Catalog.index(path, on_corrupt="mask")
    path.write_bytes(gzip.compress(part(0, b"x")))
    with pytest.raises(ds.CorruptRecordError, match="random access") as caught:
        ds.Catalog.index(path, on_corrupt="mask")
    assert "hvdtrain shard convert" in caught.value.hint


@given(st.binary(min_size=1, max_size=60), st.booleans())
def test_garbage_raises_our_errors_only(garbage: bytes, after_a_record: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.rec"
        path.write_bytes((part(0, b"good") if after_a_record else b"") + garbage)
        try:
            catalog = ds.Catalog.index(path, on_corrupt="mask")
        except ds.ShardingError:
            assert not after_a_record
            return
        with ds.RecordReader(catalog) as reader:
            assert reader.read(np.arange(1)) == [b"good"] or not after_a_record


@given(st.lists(payloads_with_magic, min_size=1, max_size=4), st.data())
def test_a_broken_frame_in_a_span_is_not_intact(records: list[bytes], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "a.rec", records)
        catalog, content = ds.Catalog.index(path), path.read_bytes()
    spans = [content[begin : begin + length] for begin, length in zip(catalog.offsets, catalog.lengths, strict=True)]
    victim = data.draw(st.integers(0, len(spans) - 1))
    good, broken = RecordIOFormat(), bytearray(spans[victim])
    broken[data.draw(st.integers(0, 3))] ^= data.draw(st.integers(1, 255))
    cut = spans[victim][: data.draw(st.integers(0, len(spans[victim]) - 1))]
    for bad in (bytes(broken), cut, spans[victim] + bytes(4), b""):
        unpacked = good.unpack([*spans, bad], None, check=False)
        assert unpacked.payloads[:-1] == records
        assert unpacked.intact.tolist() == [True] * len(spans) + [False]


def test_image_records_of_mxnet() -> None:
    one, three = map(decode_image_record, read(FIXTURES / "mxnet.rec")[-2:])
    assert one.labels.dtype == three.labels.dtype == np.float32
    assert (one.labels.tolist(), three.labels.tolist()) == ([3.0], [1.5, -2.0, 0.25])
    assert one[1:] == (7, 0, b"\xff\xd8not quite a jpeg")
    assert three[1:] == (8, 9, b"\xff\xd8another")


def test_bad_image_records_are_refused() -> None:
    whole = read(FIXTURES / "mxnet.rec")[-1].removesuffix(b"\xff\xd8another")
    assert decode_image_record(whole).image == b""
    for length in range(len(whole)):
        with pytest.raises(ds.ExampleError, match="not an image record"):
            decode_image_record(whole[:length])


def test_impossible_writing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ds.PlanError, match="multipart='other'"):
        RecordIOWriter(tmp_path / "a", "other")  # type: ignore[arg-type]
    with pytest.raises(ds.PlanError, match="multipart='other'"):
        ds.format_named("recordio", {"multipart": "other"})
    writer = RecordIOWriter(tmp_path / "a")
    with pytest.raises(ds.PlanError, match="not open"):
        writer.write(b"data")
    with pytest.raises(ds.PlanError, match="at most 536870911 bytes"), RecordIOWriter(tmp_path / "a") as writer:
        writer.write(bytes(1 << 29))
    assert os.listdir(tmp_path) == []


def test_options_survive_saving_the_catalog(tmp_path: Path) -> None:
    path = write(tmp_path / "a.rec", [b"x"])
    ds.Catalog.index(path, format=RecordIOFormat(multipart="sagemaker")).save(tmp_path / "c.npz")
    assert ds.Catalog.load(tmp_path / "c.npz").format == RecordIOFormat(multipart="sagemaker")
