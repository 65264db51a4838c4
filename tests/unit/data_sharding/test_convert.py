"""Converted data is the same data: in every format, in the same order, whole or not at all."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import tempfile
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import data_sharding as ds
from data_sharding.convert import convert, sources
from data_sharding.convert.targets import SourceRecord, encoder
from data_sharding.formats.image_folder import class_names
from data_sharding.formats.recordio import MAGIC_BYTES
from data_sharding.formats.tar_members import TarSample, tar_sample
from data_sharding.formats.writers import RecordIOWriter, TarWriter

FIXTURES = Path(__file__).parent / "fixtures"


def read(paths: Path | list[Path], record_format: str | None = None) -> list[bytes]:
    catalog = ds.Catalog.index(paths, format=record_format)
    with ds.RecordReader(catalog) as reader:
        return reader.read(np.arange(len(catalog)))


def samples(paths: Path | list[Path]) -> list[TarSample]:
    return [tar_sample(payload) for payload in read(paths)]


def tfrecord(path: Path, records: list[bytes]) -> Path:
    with ds.TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)
    return path


def tar(path: Path, records: list[TarSample]) -> Path:
    with TarWriter(path) as writer:
        for record in records:
            writer.write(record.key, record.members)
    return path


opaque = st.lists(st.binary(max_size=40) | st.just(b"abcd" + MAGIC_BYTES * 2), min_size=1, max_size=12)


@settings(max_examples=30)
@given(opaque, st.data())
def test_tfrecord_to_recordio_and_back_is_equal(records: list[bytes], data: st.DataObject) -> None:
    shards = data.draw(st.integers(1, len(records)))
    multipart = data.draw(st.sampled_from(["dmlc", "sagemaker"]))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = tfrecord(folder / "a.tfrecord", records)
        target = ds.format_named("recordio", {"multipart": multipart})
        there = convert(source, folder / "rec", shards, to=target)
        assert read(there.paths) == records
        back = convert(folder / "rec", folder / "tfrecord", 1, format=target)
        assert back.paths[0].read_bytes() == source.read_bytes()
        assert (there.records, back.records) == (len(records), len(records))


fields = st.dictionaries(st.sampled_from(["jpg", "cls", "seg.png", ""]), st.binary(max_size=30), min_size=1)
tar_records = st.lists(fields, min_size=1, max_size=8).map(
    lambda all_: [TarSample(f"dir/{number}", members) for number, members in enumerate(all_)]
)


@settings(max_examples=30)
@given(tar_records, st.sampled_from(["tfrecord", "recordio"]))
def test_tar_to_examples_and_back_is_equal(records: list[TarSample], between: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        there = convert(tar(folder / "a.tar", records), folder / "there", 1, to=between)
        examples = [ds.example.decode(payload) for payload in read(there.paths, between)]
        assert examples == [
            {"__key__": [r.key.encode()], **{ext: [content] for ext, content in r.members.items()}} for r in records
        ]
        back = convert(folder / "there", folder / "back", 1, to="tar", payloads="example")
        assert samples(back.paths) == records


@given(st.integers(1, 40), st.data())
def test_order_is_kept_and_shards_differ_by_one_record_at_most(count: int, data: st.DataObject) -> None:
    shards = data.draw(st.integers(1, count))
    records = [b"%d" % number for number in range(count)]
    with tempfile.TemporaryDirectory() as name:
        source = tfrecord(Path(name) / "a.tfrecord", records)
        done = convert(source, Path(name) / "set", shards)
        assert [path.name for path in done.paths] == [f"set-{k:05d}-of-{shards:05d}.tfrecord" for k in range(shards)]
        counts = [len(read(path)) for path in done.paths]
        assert max(counts) - min(counts) <= 1
        assert read(done.paths) == read(Path(name) / "set") == records
        assert done.fingerprint == ds.Catalog.index(Path(name) / "set").fingerprint


def test_shuffling_is_a_seeded_permutation(tmp_path: Path) -> None:
    records = [b"%d" % number for number in range(100)]
    source = tfrecord(tmp_path / "a.tfrecord", records)
    one, same, other = (read(convert(source, tmp_path / f"{i}", 3, shuffle=s).paths) for i, s in enumerate((1, 1, 2)))
    assert one == same
    assert sorted(one) == sorted(other) == sorted(records)
    assert len({tuple(records), tuple(one), tuple(other)}) == 3


def test_small_batches_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [bytes(number * 7 % 50) for number in range(100)]
    source = tfrecord(tmp_path / "a.tfrecord", records)
    monkeypatch.setattr(sources, "_BATCH_RECORDS", 7)
    monkeypatch.setattr(sources, "_BATCH_BYTES", 60)
    assert read(convert(source, tmp_path / "b", 3).paths) == records


def test_gzip_records_are_those_that_tensorflow_reads(tmp_path: Path) -> None:
    expected = [bytes.fromhex(item) for item in json.loads((FIXTURES / "tensorflow.json").read_text())]
    done = convert(FIXTURES / "tensorflow.tfrecord.gz", tmp_path / "a", 1)
    assert read(done.paths) == expected
    assert done.paths[0].read_bytes() == gzip.decompress((FIXTURES / "tensorflow.tfrecord.gz").read_bytes())
    assert os.listdir(tmp_path / "a") == ["a-00000-of-00001.tfrecord"]


def test_compressed_files_of_a_folder_are_found_and_mixed_with_plain_ones(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    tfrecord(folder / "1.tfrecord", [b"one"])
    (folder / "2.tfrecord.gz").write_bytes(gzip.compress(tfrecord(tmp_path / "2", [b"two"]).read_bytes()))
    (folder / "3.tfrecords").write_bytes(gzip.compress(tfrecord(tmp_path / "3", [b"three"]).read_bytes()))
    assert read(convert(folder, tmp_path / "out", 1).paths) == [b"one", b"two", b"three"]


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tgz"])
def test_compressed_tar_shards_are_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress((FIXTURES / "gnu.tar").read_bytes()))
    done = convert(tmp_path / name, tmp_path / "out", 2, to="tar")
    assert samples(done.paths) == samples(FIXTURES / "gnu.tar")


def test_a_record_whose_length_looks_like_gzip_is_copied(tmp_path: Path) -> None:
    source = tfrecord(tmp_path / "a.tfrecord", [bytes(0x088B1F)])
    assert source.read_bytes()[:3] == b"\x1f\x8b\x08"
    assert read(convert(source, tmp_path / "b", 1).paths) == [bytes(0x088B1F)]


def test_every_damage_of_a_gzip_file_is_named(tmp_path: Path) -> None:
    whole = gzip.compress(tfrecord(tmp_path / "plain", [b"one", b"two" * 50]).read_bytes(), mtime=0)
    path = tmp_path / "a.tfrecord.gz"
    for length in range(2, len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ds.CorruptRecordError) as caught:
            convert(path, tmp_path / "out", 1)
        assert caught.value.path == str(path)
    for position in range(10, len(whole)):  # the bytes before say nothing of the content
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x24]) + whole[position + 1 :])
        with pytest.raises(ds.CorruptRecordError) as caught:
            convert(path, tmp_path / "out", 1)
        assert caught.value.path == str(path)
    assert sorted(os.listdir(tmp_path)) == ["a.tfrecord.gz", "plain"]


@pytest.mark.parametrize("share", [0.001, 0.3, 0.99])
def test_the_content_before_the_end_of_a_cut_gzip_file_is_counted(share: float, tmp_path: Path) -> None:
    content = tfrecord(tmp_path / "plain", [np.random.default_rng(3).bytes(3 << 20), bytes(1 << 20)]).read_bytes()
    whole = gzip.compress(content, 1)
    (tmp_path / "a.tfrecord.gz").write_bytes(whole[: int(share * len(whole))])
    sound = len(zlib.decompressobj(wbits=31).decompress(whole[: int(share * len(whole))]))
    with pytest.raises(ds.CorruptRecordError, match=f"damaged after {sound} bytes of content") as caught:
        convert(tmp_path / "a.tfrecord.gz", tmp_path / "out", 1)
    assert caught.value.offset == sound > 0


def test_damage_inside_sound_gzip_names_the_file_that_the_user_knows(tmp_path: Path) -> None:
    content = bytearray(tfrecord(tmp_path / "plain", [b"one", b"two"]).read_bytes())
    content[-5] ^= 1
    path = tmp_path / "a.tfrecord.gz"
    path.write_bytes(gzip.compress(content))
    with pytest.raises(ds.CorruptRecordError, match=f"content of {path}") as caught:
        convert(path, tmp_path / "out", 1)
    assert (caught.value.path, caught.value.offset) == (str(path), 19)
    assert not (tmp_path / "out").exists()


def test_damage_in_a_plain_source_leaves_nothing(tmp_path: Path) -> None:
    source = tfrecord(tmp_path / "a.tfrecord", [b"%d" % number for number in range(10)])
    content = bytearray(source.read_bytes())
    content[-5] ^= 1
    source.write_bytes(content)
    (tmp_path / "out").mkdir()
    with pytest.raises(ds.CorruptRecordError, match="Record 9"):
        convert(source, tmp_path / "out", 3)
    assert os.listdir(tmp_path / "out") == []


def test_labels_become_features_and_members(tmp_path: Path) -> None:
    source = tmp_path / "data_batch_1.bin"
    images = [bytes([number]) * 3072 for number in range(3)]
    source.write_bytes(b"".join(bytes([number + 5]) + image for number, image in enumerate(images)))
    there = convert(source, tmp_path / "a", 2, format="cifar10")
    decoded = ds.example.decode_batch(read(there.paths))
    assert decoded["image"][:, 0].tolist() == images
    assert decoded["label"].tolist() == [[5], [6], [7]]
    in_tar = convert(source, tmp_path / "b", 1, format="cifar10", to="tar")
    assert samples(in_tar.paths) == [
        TarSample(f"{number:08d}", {"bin": image, "cls": b"%d" % (number + 5)}) for number, image in enumerate(images)
    ]


def test_images_of_folders_keep_their_extension(tmp_path: Path) -> None:
    files = {"cat/a.JPG": b"\xff\xd8one", "dog/b.png": b"\x89PNG", "dog/c.jpg": b"\xff\xd8two"}
    for name, content in files.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(content)
    in_tar = convert(tmp_path / "in", tmp_path / "tar", 2, to="tar", format="image_folder")
    assert [sample.members for sample in samples(in_tar.paths)] == [
        {"jpg": b"\xff\xd8one", "cls": b"0"},
        {"png": b"\x89PNG", "cls": b"1"},
        {"jpg": b"\xff\xd8two", "cls": b"1"},
    ]
    examples = ds.example.decode_batch(read(convert(tmp_path / "in", tmp_path / "tf", 1, format="image_folder").paths))
    assert (examples["image"][:, 0].tolist(), examples["label"][:, 0].tolist()) == (list(files.values()), [0, 1, 1])


def test_arrays_become_data_without_labels_where_there_are_none() -> None:
    record = SourceRecord(7, 3, b"\0\1", None)
    assert ds.example.decode(encoder("npz", "tfrecord", None)(record)) == {"data": [b"\0\1"]}
    assert encoder("npz", "tar", None)(record) == TarSample("00000007", {"bin": b"\0\1"})


def _rows(folder: Path, kind: str) -> Path:
    import pyarrow as pa
    import pyarrow.feather
    import pyarrow.parquet

    columns = {"text": ["a", "b", "c"], "wide": [0.1, 1e-300, 2.0], "class": [7, 8, 9]}
    path = folder / f"rows.{kind}"
    (pa.parquet.write_table if kind == "parquet" else pa.feather.write_feather)(pa.table(columns), path)
    return path


@pytest.mark.parametrize("kind", ["mds", "parquet", "arrow"])
def test_records_that_are_examples_stay_the_same_bytes_and_become_members(tmp_path: Path, kind: str) -> None:
    source = FIXTURES / "mosaicml-0.mds" if kind == "mds" else _rows(tmp_path, kind)
    original = read(source)
    assert read(convert(source, tmp_path / "tf", 1).paths) == original
    first, features = samples(convert(source, tmp_path / "tar", 1, to="tar").paths)[0], ds.example.decode(original[0])
    assert first.members["text"] == features["text"][0]
    assert np.array_equal(np.load(io.BytesIO(first.members["wide.npy"])), features["wide"])
    opaque = convert(source, tmp_path / "opaque", 1, to="tar", payloads="opaque")
    assert [sample.members for sample in samples(opaque.paths)] == [{"bin": payload} for payload in original]


def test_a_label_beside_an_example_becomes_a_feature_of_its_name(tmp_path: Path) -> None:
    labelled = ds.format_named("parquet", {"label": "class"})
    done = convert(_rows(tmp_path, "parquet"), tmp_path / "tf", 1, format=labelled)
    examples = [ds.example.decode(record) for record in read(done.paths)]
    assert [each["class"].tolist() for each in examples] == [[7], [8], [9]]
    assert [each["wide"].tolist() for each in examples] == [[0.1], [1e-300], [2.0]]
    done = convert(_rows(tmp_path, "parquet"), tmp_path / "tar", 1, format=labelled, to="tar")
    assert [sample.members["class"] for sample in samples(done.paths)] == [b"7", b"8", b"9"]


@pytest.mark.parametrize("size", [1000, 20_000])
def test_memory_does_not_grow_with_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(sources, "_BATCH_BYTES", 1 << 20)
    peaks = []
    for count in (8_000_000 // size // 8, 8_000_000 // size):
        source = tfrecord(tmp_path / f"{count}.tfrecord", [bytes(size)] * count)
        tracemalloc.start()
        convert(source, tmp_path / f"{count}", 2, shuffle=1)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 2 << 20  # of 7 MB more data


def test_features_become_members(tmp_path: Path) -> None:
    features: dict[str, ds.example.FeatureInput] = {
        "image/Encoded": b"\xff\xd8",
        "label": 7,
        "box": [0.5, 1.5],
        "ids": [1, 2],
    }
    source = tfrecord(tmp_path / "a.tfrecord", [ds.example.encode(features)])
    (sample,) = samples(convert(source, tmp_path / "out", 1, to="tar").paths)
    assert sample.key == "00000000"
    assert list(sample.members) == ["box.npy", "ids.npy", "image.encoded", "label"]
    assert (sample.members["image.encoded"], sample.members["label"]) == (b"\xff\xd8", b"7")
    box = np.load(io.BytesIO(sample.members["box.npy"]), allow_pickle=False)
    assert (box.dtype, box.tolist()) == (np.float32, [0.5, 1.5])


def test_opaque_payloads_become_one_member(tmp_path: Path) -> None:
    source = tfrecord(tmp_path / "a.tfrecord", [b"no example", b""])
    expected = [TarSample("00000000", {"bin": b"no example"}), TarSample("00000001", {"bin": b""})]
    assert samples(convert(source, tmp_path / "1", 1, to="tar", payloads="opaque").paths) == expected
    with RecordIOWriter(tmp_path / "a.rec") as writer:
        writer.write(b"no example")
        writer.write(b"")
    assert samples(convert(tmp_path / "a.rec", tmp_path / "2", 1, to="tar").paths) == expected


def test_equal_keys_that_come_to_stand_side_by_side_stay_two_samples(tmp_path: Path) -> None:
    for name in ("1.tar", "2.tar"):
        tar(tmp_path / name, [TarSample("a", {"txt": name.encode()})])
    done = convert([tmp_path / "1.tar", tmp_path / "2.tar"], tmp_path / "out", 1, to="tar")
    assert samples(done.paths) == [TarSample("a", {"txt": b"1.tar"}), TarSample("a-00000001", {"txt": b"2.tar"})]


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"x": [b"1", b"2"]}, "'x' .* has 2 values"),
        ({"x": []}, "'x' .* has 0 values"),
        ({"A": b"1", "a": b"2"}, "both become a member .a"),
        ({}, "without features"),
        (None, "not a tf.train.Example"),
    ],
)
def test_what_a_sample_cannot_hold_is_refused_and_named(
    tmp_path: Path, features: dict[str, ds.example.FeatureInput] | None, message: str
) -> None:
    good = ds.example.encode({"x": b"1"})
    bad = b"\xff\xff" if features is None else ds.example.encode(features)
    source = tfrecord(tmp_path / "a.tfrecord", [good, bad])
    with pytest.raises(ds.ExampleError, match=message) as caught:
        convert(source, tmp_path / "out", 1, to="tar")
    assert f"{source} @ byte {len(good) + 16}" in caught.value.fact
    assert "--payloads opaque" in caught.value.hint or "lower" in caught.value.conflict
    assert os.listdir(tmp_path) == ["a.tfrecord"]


def test_impossible_requests_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    source = tfrecord(folder / "a.tfrecord", [b"1", b"2"])
    out = tmp_path / "out"
    cases: list[tuple[dict[str, object], str]] = [
        ({"num_shards": 0}, "0 files were asked for"),
        ({"num_shards": 3}, "2 records were to be distributed over 3 files"),
        ({"to": "tfrecrod"}, "no record format 'tfrecrod'"),
        ({"to": "npz"}, "can be read but not written"),
        ({"format": "tra"}, "no record format 'tra'"),
        ({"folder": folder}, "overlap"),
        ({"folder": folder / "new"}, "overlap"),
        ({"sources": source, "folder": folder}, "overlap"),
        ({"sources": str(folder / "*.tfrecord"), "folder": folder}, "overlap"),
        ({"name": "a/b"}, "named 'a/b'"),
        ({"payloads": "opaque"}, "on the way to tfrecord"),
    ]
    for changes, message in cases:
        arguments = {"sources": folder, "folder": out, "num_shards": 1, **changes}
        with pytest.raises(ds.PlanError, match=message):
            convert(**arguments)  # type: ignore[arg-type]
    with pytest.raises(ds.MissingDataError, match="does not exist"):
        convert(tmp_path / "nowhere", out, 1)
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == ["in", "in/a.tfrecord"]


def test_a_set_of_the_same_name_is_never_touched(tmp_path: Path) -> None:
    source = tfrecord(tmp_path / "a.tfrecord", [b"1", b"2"])
    first = convert(source, tmp_path / "out", 1, name="train")
    before = first.paths[0].read_bytes()
    for shards, to in ((1, "tfrecord"), (2, "tfrecord"), (1, "recordio"), (1, "tar")):
        with pytest.raises(ds.PlanError, match="already holds train-00000-of-00001.tfrecord"):
            convert(source, tmp_path / "out", shards, name="train", to=to)
    assert (os.listdir(tmp_path / "out"), first.paths[0].read_bytes()) == ([first.paths[0].name], before)
    assert convert(source, tmp_path / "out", 1, name="train-b").records == 2


def test_a_set_that_appears_meanwhile_is_not_touched(tmp_path: Path) -> None:
    source = tfrecord(tmp_path / "a.tfrecord", [b"1"])
    rival = tmp_path / "out" / "out-00000-of-00001.tfrecord"
    with pytest.raises(ds.PlanError, match="already holds"):
        convert(source, tmp_path / "out", 1, on_progress=lambda *_: rival.write_bytes(b"rival"))
    assert [(path, path.read_bytes()) for path in (tmp_path / "out").iterdir()] == [(rival, b"rival")]


def test_progress_is_told_of_every_record_in_both_steps(tmp_path: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    source = tfrecord(tmp_path / "a.tfrecord", [b"1", b"2", b"3"])
    convert(source, tmp_path / "out", 2, on_progress=lambda *call: calls.append(call))
    assert calls == [(step, done, 3) for step in ("write", "check") for done in (1, 2, 3)]


def test_what_the_disk_returns_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tfrecord(tmp_path / "a.tfrecord", [b"one", b"two"])
    monkeypatch.setattr(sources, "_BATCH_RECORDS", 1)

    def damage(step: str, done: int, _: int) -> None:
        if (step, done) == ("check", 1):
            (path,) = (tmp_path / "out").rglob("*.rec")
            with open(path, "r+b") as file:
                file.seek(-2, os.SEEK_END)  # in the payload of the last record, which has no checksum in this format
                file.write(b"?")

    with pytest.raises(ds.CorruptRecordError, match="Record 1 is not what was written"):
        convert(source, tmp_path / "out", 1, to="recordio", on_progress=damage)
    assert not (tmp_path / "out").exists()


NAMES = [
    "ant/a.jpg",
    "bee/a.jpg",
    "bee/a.png",
    "bee/deep/b.v1.JPG",
    "bee/deep/b.v2.JPG",
    "bee/deep/c.jpeg",
    "cat dog/é.gif",
]


@pytest.mark.parametrize("shuffle", [None, 3])
def test_image_folders_keep_classes_and_names_in_tar(tmp_path: Path, shuffle: int | None) -> None:
    for name in NAMES:
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(name.encode())
    done = convert(tmp_path / "in", tmp_path / "out", 2, to="tar", format="image_folder", shuffle=shuffle)
    by_payload = {
        content: (sample.key, extension, sample.members["cls"])
        for sample in samples(done.paths)
        for extension, content in sample.members.items()
        if extension != "cls"
    }
    assert by_payload[b"ant/a.jpg"] == ("ant/a", "jpg", b"0")
    assert by_payload["cat dog/é.gif".encode()] == ("cat dog/é", "gif", b"2")
    assert by_payload[b"bee/deep/b.v1.JPG"] == ("bee/deep/b_v1", "jpg", b"1")  # a key ends at the first dot
    assert by_payload[b"bee/deep/b.v2.JPG"] == ("bee/deep/b_v2", "jpg", b"1")
    # There and back: unpacked by whatever tool, the shards are the folder of images again.
    for path in done.paths:
        with tarfile.open(path) as archive:
            archive.extractall(tmp_path / "back", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    before, after = (ds.Catalog.index(tmp_path / folder, format="image_folder") for folder in ("in", "back"))
    assert class_names(after) == class_names(before) == ("ant", "bee", "cat dog")
    assert labelled(after) == labelled(before)
    # And through Examples, which keep a sample's key.
    there = convert(done.paths, tmp_path / "there", 1, to="tfrecord")
    assert samples(convert(there.paths, tmp_path / "again", 1, to="tar").paths) == samples(done.paths)


def labelled(catalog: ds.Catalog) -> set[tuple[bytes, int]]:
    with ds.RecordReader(catalog) as reader:
        batch = reader.load(np.arange(len(catalog)))
    assert batch.labels is not None
    return set(zip(batch, batch.labels.tolist(), strict=True))


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_end_between_two_renames_leaves_nothing(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename, moved = os.rename, []

    def interrupted(source: Path, target: Path) -> None:
        rename(source, target)
        if target.parent == tmp_path / "out":
            moved.append(target)
            if len(moved) == 2:  # done, and not yet noted
                raise error

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(error):
        convert(tfrecord(tmp_path / "a.tfrecord", [b"1", b"2", b"3"]), tmp_path / "out", 3)
    assert len(moved) == 2
    assert os.listdir(tmp_path) == ["a.tfrecord"]
