"""Tar shards: samples are what webdataset reads, what is written is found again, and damage is named."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import random
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import data_sharding as ds
from data_sharding.convert import convert
from data_sharding.formats.tar import scan_archive
from data_sharding.formats.tar_members import TarSample, split_name, tar_members, tar_sample
from data_sharding.formats.writers import TarWriter
from data_sharding.storage import describe_file, open_source

FIXTURES = Path(__file__).parents[1] / "fixtures"
BLOCK = 512

letters = st.text("abz019-_ é水", min_size=1, max_size=8).filter(lambda text: text.strip("_") == text)
keys = st.one_of(
    st.builds("/".join, st.lists(letters, min_size=1, max_size=3)), st.integers(95, 260).map(lambda n: "k" * n)
)
extensions = st.sampled_from(["jpg", "cls", "seg.png", "json", "a" * 120, ""])
contents = st.one_of(st.binary(max_size=20), st.sampled_from([0, 511, 512, 513, 1024]).map(bytes))
samples = st.lists(st.tuples(keys, st.dictionaries(extensions, contents, min_size=1, max_size=3)), min_size=1)
distinct = samples.map(lambda all_: list(dict(all_).items()))


def write(path: Path, records: Sequence[tuple[str, Mapping[str, bytes]]]) -> Path:
    with TarWriter(path) as writer:
        for key, members in records:
            writer.write(key, members)
    return path


def read(path: Path, on_corrupt: str = "raise") -> list[TarSample]:
    catalog = ds.Catalog.index(path, format="tar", on_corrupt=on_corrupt)  # type: ignore[arg-type]
    with ds.RecordReader(catalog) as reader:
        return [tar_sample(payload) for payload in reader.read(np.arange(len(catalog)))]


def archive(path: Path, *members: tarfile.TarInfo | tuple[str, bytes], style: int = tarfile.PAX_FORMAT) -> Path:
    """What the standard library makes of some members."""
    with tarfile.open(path, "w", format=style) as tar:
        for member in members:
            if isinstance(member, tuple):
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                tar.addfile(info, io.BytesIO(member[1]))
            else:
                tar.addfile(member)
    return path


def special(name: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, "target"
    return info


@given(distinct)
def test_what_is_written_is_read(records: list[tuple[str, dict[str, bytes]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "a.tar", records)
        assert read(path) == [TarSample(key, members) for key, members in records]
        assert os.listdir(folder) == ["a.tar"]


@given(distinct)
def test_the_standard_library_reads_what_is_written(records: list[tuple[str, dict[str, bytes]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "a.tar", records)
        with tarfile.open(path, "r:") as tar:
            found = [(info.name, tar.extractfile(info).read()) for info in tar]  # type: ignore[union-attr]
        assert path.stat().st_size % tarfile.RECORDSIZE == 0
    assert found == [(f"{key}.{name}", content) for key, members in records for name, content in members.items()]


@given(distinct, st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
def test_what_the_standard_library_writes_is_read(records: list[tuple[str, dict[str, bytes]]], style: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        members = [(f"{key}.{name}", content) for key, sample in records for name, content in sample.items()]
        path = archive(Path(folder) / "a.tar", *members, style=style)
        assert read(path) == [TarSample(key, members) for key, members in records]


@pytest.mark.parametrize("name", ["webdataset.tar", "gnu.tar"])
def test_samples_are_those_of_webdataset(name: str) -> None:
    expected = json.loads((FIXTURES / "tar.json").read_text())[name]
    theirs = [TarSample(s["key"], {k: bytes.fromhex(v) for k, v in s["fields"].items()}) for s in expected]
    content = (FIXTURES / name).read_bytes()
    index, scattered = scan_archive(name, open_source(describe_file(str(FIXTURES / name))))
    spans = zip(index.offsets.tolist(), index.lengths.tolist(), strict=True)
    assert [tar_sample(content[offset : offset + length]) for offset, length in spans] == theirs
    # Where webdataset begins another sample with the rest of one, archives are not read as they are.
    assert (scattered is not None) == (len({sample.key for sample in theirs}) < len(theirs))


def test_equal_samples_make_equal_files(tmp_path: Path) -> None:
    records = [("a", {"jpg": b"x"}), ("k" * 200, {"cls": b"1"})]
    assert write(tmp_path / "1", records).read_bytes() == write(tmp_path / "2", records).read_bytes()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.jpg", ("a", "jpg")),
        ("dir.d/a.Seg.PNG", ("dir.d/a", "seg.png")),
        ("./a.jpg", ("./a", "jpg")),
        ("a.", ("a", "")),
        ("README", None),
        (".hidden.jpg", None),
        ("dir/.hidden.jpg", None),
        ("__meta__/a.jpg", None),
        ("__meta__", None),
        ("__meta__.json", ("__meta__", "json")),
        ("sub/__x__/a.jpg", ("sub/__x__/a", "jpg")),
    ],
)
def test_keys_and_extensions(name: str, expected: tuple[str, str] | None) -> None:
    assert split_name(name) == expected


def test_what_belongs_to_no_sample_is_passed_over(tmp_path: Path) -> None:
    folder = special("dir", tarfile.DIRTYPE)
    path = archive(tmp_path / "a.tar", folder, ("a.x", b"1"), ("NOTE", b"?" * 600), folder, ("a.y", b"2"), ("END", b""))
    assert read(path) == [TarSample("a", {"x": b"1", "y": b"2"})]


def test_a_sample_in_several_places_is_refused(tmp_path: Path) -> None:
    members = [("n/a.txt", b"1"), ("n/b.txt", b"2"), ("README", b""), ("n/a.cls", b"3"), ("n/b.cls", b"4")]
    path = archive(tmp_path / "a.tar", *members)
    for policy in ("raise", "mask"):
        with pytest.raises(
            ds.ShardingError, match="'n/a' of .*a.tar are at byte offset 0 and,.* offset 2560"
        ) as caught:
            read(path, policy)
        assert f"hvdtrain shard convert {path} FOLDER --to tar" in caught.value.hint
    converted = convert(path, tmp_path / "joined", 1, to="tar")
    assert read(converted.paths[0]) == [
        TarSample("n/a", {"txt": b"1", "cls": b"3"}),
        TarSample("n/b", {"txt": b"2", "cls": b"4"}),
    ]


def test_a_key_that_comes_again_with_the_same_members_is_another_sample(tmp_path: Path) -> None:
    members = [("a.x", b"1"), ("b.x", b"2"), ("a.x", b"3"), ("a.y", b"4"), ("b.x", b"5")]
    path = archive(tmp_path / "a.tar", *members)
    assert [(sample.key, sample.members) for sample in read(path)] == [
        ("a", {"x": b"1"}),
        ("b", {"x": b"2"}),
        ("a", {"x": b"3", "y": b"4"}),
        ("b", {"x": b"5"}),
    ]


@given(distinct, st.randoms())
def test_joining_gives_the_samples_that_were_scattered(
    records: list[tuple[str, dict[str, bytes]]], random: random.Random
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        members = [(f"{key}.{name}", content) for key, sample in records for name, content in sample.items()]
        random.shuffle(members)
        path = archive(Path(folder) / "a.tar", *members)
        (joined,) = convert(path, Path(folder) / "joined", 1, to="tar").paths
        assert {sample.key: sample.members for sample in read(joined)} == dict(records)


def test_damage_is_named_rather_than_joined(tmp_path: Path) -> None:
    link = special("c.lnk", tarfile.SYMTYPE)
    path = archive(tmp_path / "a.tar", ("a.x", b"1"), ("b.x", b"2"), link, ("a.y", b"3"))
    with pytest.raises(ds.CorruptRecordError, match=r"c\.lnk.* is a symbolic link"):
        convert(path, tmp_path / "joined", 1, to="tar")


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (("../a.jpg", b"x"), "'../a.jpg' .* leaves its folder"),
        (("a/../../b.jpg", b"x"), "leaves its folder"),
        (("/etc/a.jpg", b"x"), "absolute name"),
        (special("a.lnk", tarfile.SYMTYPE), "'a.lnk' .* is a symbolic link"),
        (special("a.lnk", tarfile.LNKTYPE), "is a hard link"),
        (special("null", tarfile.CHRTYPE), "is a character device"),
        (special("a.disk", tarfile.BLKTYPE), "is a block device"),
        (special("a.fifo", tarfile.FIFOTYPE), "is a FIFO"),
        (("a.JPG", b"second"), "twice in its sample"),
    ],
)
def test_members_that_must_not_be_used_are_named(
    tmp_path: Path, member: tarfile.TarInfo | tuple[str, bytes], message: str
) -> None:
    path = archive(tmp_path / "a.tar", ("a.jpg", b"1"), member, ("a.txt", b"2"), ("b.jpg", b"3"))
    with pytest.raises(ds.CorruptRecordError, match=message) as caught:
        ds.Catalog.index(path)
    assert caught.value.offset == 2 * BLOCK
    catalog = ds.Catalog.index(path, on_corrupt="mask")
    with ds.RecordReader(catalog, on_corrupt="mask") as reader:
        batch = reader.load(np.arange(len(catalog)))
        assert batch.intact.tolist().count(False) == 1
        assert {tar_sample(payload).key for payload in batch} <= {"a", "b"}
        with pytest.raises(ds.CorruptRecordError, match="framing is broken"):
            reader.read(np.arange(len(catalog)))


def test_every_truncation_is_named_and_leaves_whole_samples(tmp_path: Path) -> None:
    records = [("a", {"x": bytes(600), "y": b"1"}), ("k" * 150, {"x": b""}), ("c", {"x": b"3"})]
    whole = write(tmp_path / "whole", records).read_bytes()
    index = ds.Catalog.index(tmp_path / "whole", format="tar")
    content_end = int(index.offsets[-1] + index.lengths[-1])
    ends = (index.offsets + index.lengths).tolist()
    path = tmp_path / "cut.tar"
    for length in [*range(1, content_end + BLOCK, 37), content_end]:
        path.write_bytes(whole[:length])
        with pytest.raises(ds.CorruptRecordError) as caught:
            ds.Catalog.index(path)
        assert caught.value.path == str(path)
        kept = [TarSample(*record) for record, end in zip(records, ends, strict=True) if end < length]
        try:
            found = read(path, "mask")
        except (ds.MissingDataError, ds.CorruptRecordError):
            found = []
        assert found in (kept, kept[:-1])
    path.write_bytes(whole[: -(-content_end // BLOCK) * BLOCK])
    with pytest.raises(ds.CorruptRecordError, match="no end-of-archive mark"):
        ds.Catalog.index(path)


@given(st.data())
def test_a_flipped_byte_in_a_header_is_found(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "a.tar", [("a", {"x": b"1"}), ("b", {"x": b"2", "y": b"3"}), ("c", {"x": b"4"})])
        content = bytearray(path.read_bytes())
        header = data.draw(st.sampled_from([0, 2, 4, 6])) * BLOCK
        position = header + data.draw(st.integers(0, 147) | st.integers(156, 511))
        content[position] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content)
        with pytest.raises(ds.CorruptRecordError) as caught:
            ds.Catalog.index(path)
        assert caught.value.offset == header


@pytest.mark.parametrize("style", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_of_more_than_octal_digits_can_hold(tmp_path: Path, style: int) -> None:
    size, path = 9 << 30, tmp_path / "a.tar"
    info = tarfile.TarInfo("a.bin")
    info.size = size
    with open(path, "wb") as file:  # 9 GiB that are a hole in the file
        head = file.write(info.tobuf(style))
        file.seek(size, os.SEEK_CUR)
        file.write(tarfile.TarInfo("b.txt").tobuf(style))
        file.truncate(file.tell() + 2 * BLOCK)
    catalog = ds.Catalog.index(path)
    assert catalog.offsets.tolist() == [0, head + size]
    assert catalog.lengths.tolist() == [head + size, BLOCK]


def test_a_second_archive_behind_the_first_is_noticed(tmp_path: Path) -> None:
    one = write(tmp_path / "1.tar", [("a", {"x": b"1"})]).read_bytes()
    (tmp_path / "1.tar").write_bytes(one + one)
    with pytest.raises(ds.CorruptRecordError, match="continues after its end-of-archive mark at byte offset 1024"):
        ds.Catalog.index(tmp_path / "1.tar")


def test_other_and_compressed_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(1000))
    with pytest.raises(ds.CorruptRecordError, match="is not a tar archive"):
        ds.Catalog.index(path, on_corrupt="mask")
    path.write_bytes(gzip.compress(write(tmp_path / "plain", [("a", {"x": b"1"})]).read_bytes()))
    with pytest.raises(ds.CorruptRecordError, match="random access") as caught:
        ds.Catalog.index(path, on_corrupt="mask")
    assert "hvdtrain shard convert" in caught.value.hint


@given(st.binary(max_size=1500), st.integers(0, 3), st.sampled_from(["pax", "size", "raw"]))
def test_garbage_raises_our_errors_only(garbage: bytes, padding: int, where: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.tar"
        if where == "pax":
            info = special("a", tarfile.XHDTYPE)
            info.size = len(garbage)
            path.write_bytes(info.tobuf() + garbage + bytes(-len(garbage) % BLOCK + padding * BLOCK))
        elif where == "size":
            info = special("a.x", tarfile.REGTYPE)
            info.size = int.from_bytes(garbage[:8], "big")
            path.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + garbage)
        else:
            path.write_bytes(garbage + bytes(padding))
        with contextlib.suppress(ds.ShardingError):
            read(path, "mask")


@given(st.binary(max_size=600))
def test_payloads_that_are_no_sample_are_refused(garbage: bytes) -> None:
    with pytest.raises(ds.ExampleError, match="not a sample of a tar shard"):
        tar_members(garbage)


@pytest.mark.parametrize(
    ("key", "extension"),
    [("a.b", "x"), ("../a", "x"), ("a/../b", "x"), ("/a", "x"), ("", "x"), ("__m__/a", "x"), ("a", "X"), ("a", "x/y")],
)
def test_names_that_would_not_be_found_again_are_refused(tmp_path: Path, key: str, extension: str) -> None:
    with pytest.raises(ds.PlanError, match="named"), TarWriter(tmp_path / "a.tar") as writer:
        writer.write(key, {extension: b""})
    assert os.listdir(tmp_path) == []


def test_impossible_writing_is_refused(tmp_path: Path) -> None:
    with TarWriter(tmp_path / "a.tar") as writer:
        writer.write("a", {"x": b"1"})
        with pytest.raises(ds.PlanError, match="in a row"):
            writer.write("a", {"y": b"2"})
        with pytest.raises(ds.PlanError, match="no members"):
            writer.write("b", {})
        writer.write("b", {"x": b"3"})
    with pytest.raises(ds.PlanError, match="not open"):
        writer.write("c", {"x": b"4"})
    assert read(tmp_path / "a.tar") == [TarSample("a", {"x": b"1"}), TarSample("b", {"x": b"3"})]
