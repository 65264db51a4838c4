"""Records come out of a stream whole and in order, wherever its chunks end; what is damaged does not come out."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import data_sharding as ds
from data_sharding.formats.record_format import FrameError
from data_sharding.formats.tfrecord import FOOTER, HEADER, length_crc, masked_crc
from data_sharding.pipe.parsers import FrameParser, Framing, parser_for

MAGIC = struct.pack("<I", 0xCED7230A)

payload_lists = st.lists(st.binary(max_size=200) | st.binary(max_size=3).map(lambda part: part * 40), max_size=20)
cuts = st.lists(st.integers(0, 5000), max_size=30)


def tfrecords(payloads: Sequence[bytes]) -> bytes:
    return b"".join(
        HEADER.pack(len(data), length_crc(len(data))) + data + FOOTER.pack(masked_crc(data)) for data in payloads
    )


def part(cflag: int, data: bytes) -> bytes:
    return MAGIC + struct.pack("<I", cflag << 29 | len(data)) + data + bytes(-len(data) % 4)


def dmlc_record(data: bytes) -> bytes:
    """As dmlc-core's RecordIOWriter::WriteRecord does it, written from its description."""
    pieces, begin = [], 0
    for at in range(0, len(data) - 3, 4):
        if data[at : at + 4] == MAGIC:
            pieces.append(data[begin:at])
            begin = at + 4
    pieces.append(data[begin:])
    if len(pieces) == 1:
        return part(0, data)
    flags = [1, *[2] * (len(pieces) - 2), 3]
    return b"".join(part(flag, piece) for flag, piece in zip(flags, pieces, strict=True))


def in_chunks(stream: bytes, at: Sequence[int]) -> list[bytes]:
    bounds = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in at)})
    return [stream[begin:end] for begin, end in zip(bounds, bounds[1:], strict=False)]


def parse(parser: FrameParser, chunks: Sequence[bytes]) -> list[bytes]:
    records = [record for chunk in chunks for record in parser.feed(chunk)]
    parser.finish()
    return records


@given(payload_lists, cuts)
def test_tfrecords_in_any_chunks(payloads: list[bytes], at: list[int]) -> None:
    assert parse(parser_for("tfrecord"), in_chunks(tfrecords(payloads), at)) == payloads


def test_tfrecords_byte_by_byte() -> None:
    payloads = [b"", b"a" * 300, b"bc"]
    assert parse(parser_for("tfrecord"), [bytes([byte]) for byte in tfrecords(payloads)]) == payloads


def test_files_of_our_writer(tmp_path: Path, payloads: list[bytes]) -> None:
    paths = ds.write_shards(tmp_path, "x", payloads, 3)
    stream = b"".join(path.read_bytes() for path in paths)
    expected = [payload for shard in range(3) for payload in payloads[shard::3]]
    assert parse(parser_for("tfrecord"), in_chunks(stream, range(0, len(stream), 997))) == expected


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=6), st.data(), cuts)
def test_a_flipped_bit_in_a_tfrecord_is_found(payloads: list[bytes], data: st.DataObject, at: list[int]) -> None:
    stream = bytearray(tfrecords(payloads))
    where = data.draw(st.integers(0, len(stream) - 1))
    stream[where] ^= 1 << data.draw(st.integers(0, 7))
    starts = [len(tfrecords(payloads[:number])) for number in range(len(payloads))]
    damaged = max(start for start in starts if start <= where)
    with pytest.raises(FrameError) as caught:
        parse(parser_for("tfrecord"), in_chunks(bytes(stream), at))
    assert caught.value.offset == damaged


@pytest.mark.parametrize("framing", ["tfrecord", "recordio", "recordio-sagemaker"])
@given(payloads=st.lists(st.binary(max_size=50), min_size=1, max_size=6), data=st.data(), at=cuts)
def test_a_stream_that_ends_inside_a_record(
    framing: Framing, payloads: list[bytes], data: st.DataObject, at: list[int]
) -> None:
    encode = tfrecords if framing == "tfrecord" else lambda some: b"".join(part(0, each) for each in some)
    ends = {len(encode(payloads[:number])) for number in range(len(payloads) + 1)}
    stop = data.draw(st.integers(0, max(ends)).filter(lambda stop: stop not in ends))
    parser = parser_for(framing)
    with pytest.raises(FrameError, match="it ends") as caught:
        parse(parser, in_chunks(encode(payloads)[:stop], at))
    assert caught.value.offset == max(end for end in ends if end < stop)


@pytest.mark.parametrize("framing", ["tfrecord", "recordio"])
def test_garbage(framing: Framing) -> None:
    with pytest.raises(FrameError) as caught:
        parser_for(framing).feed(b"\xff\xd8\xff\xe0 this is a picture, not a record")
    assert caught.value.offset == 0


def test_a_gzip_stream_is_named() -> None:
    with pytest.raises(FrameError, match="gzip"):
        parser_for("tfrecord").feed(gzip.compress(tfrecords([b"x" * 100])))


pieces = st.lists(st.binary(max_size=9) | st.just(MAGIC), max_size=12).map(b"".join)


@given(st.lists(pieces, max_size=8), cuts)
def test_dmlc_records_in_any_chunks(payloads: list[bytes], at: list[int]) -> None:
    """Records that hold the magic number, aligned or not, included."""
    stream = b"".join(map(dmlc_record, payloads))
    assert parse(parser_for("recordio"), in_chunks(stream, at)) == payloads


def test_what_dmlc_splits_sagemaker_joins_without_the_magic_number() -> None:
    payload = b"1234" + MAGIC + b"5678" + MAGIC
    stream = dmlc_record(payload)
    assert stream.count(MAGIC) == 3
    assert parse(parser_for("recordio"), [stream]) == [payload]
    assert parse(parser_for("recordio-sagemaker"), [stream]) == [b"12345678"]


@pytest.mark.parametrize("flags", [[2], [3], [1, 0], [1, 1], [4], [1, 2, 0]])
def test_parts_in_an_impossible_order(flags: list[int]) -> None:
    with pytest.raises(FrameError, match="a part marked"):
        parser_for("recordio").feed(b"".join(part(flag, b"") for flag in flags))


@pytest.mark.parametrize("flags", [[1], [1, 2]])
def test_a_stream_that_ends_between_two_parts(flags: list[int]) -> None:
    parser = parser_for("recordio")
    assert parser.feed(part(0, b"whole") + b"".join(part(flag, b"") for flag in flags)) == [b"whole"]
    with pytest.raises(FrameError, match="between two parts") as caught:
        parser.finish()
    assert caught.value.offset == len(part(0, b"whole"))


def test_an_unknown_framing() -> None:
    with pytest.raises(ds.PlanError, match="tfrecord or recordio or recordio-sagemaker"):
        parser_for("csv")  # type: ignore[arg-type]
