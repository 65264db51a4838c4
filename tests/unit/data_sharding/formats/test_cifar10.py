"""CIFAR batches: every way to write one gives the same images and labels, and nothing in them is ever executed."""

from __future__ import annotations

import pickle
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import data_sharding as ds
from data_sharding.formats.cifar10 import Cifar10Format, decode_cifar10

Images = NDArray[np.uint8]


def images_of(count: int, seed: int = 3) -> Images:
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), np.uint8)


def labels_of(count: int) -> list[int]:
    return [(7 * number + 3) % 10 for number in range(count)]


def binary(images: Images, labels: list[int]) -> bytes:
    return np.column_stack([np.array(labels, np.uint8), images]).tobytes()


def python3(protocol: int) -> Callable[[Images, list[int]], bytes]:
    names = [b"%d_image.png" % number for number in range(9)]
    batch = {b"batch_label": b"training batch 1 of 5", b"filenames": names}
    return lambda images, labels: pickle.dumps({**batch, b"labels": labels, b"data": images}, protocol)


def short(content: bytes) -> bytes:
    return b"U" + bytes([len(content)]) + content


def integer(value: int) -> bytes:
    return b"K" + bytes([value]) if value < 256 else b"M" + struct.pack("<H", value)


def python2(images: Images, labels: list[int], label_key: bytes = b"labels") -> bytes:
    """What Python 2's cPickle and its numpy write with protocol 2: strings of bytes, and labels before the data."""
    content = images.tobytes()
    numbers = b"".join(map(integer, labels))
    string = b"T" + struct.pack("<i", len(content)) + content if len(content) > 255 else short(content)
    return b"".join(
        [
            b"\x80\x02}q\x01(" + short(b"batch_label") + b"q\x02" + short(b"training batch 1 of 5") + b"q\x03",
            short(label_key) + b"q\x04]q\x05(" + numbers + b"e",
            short(b"data") + b"q\x06cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85q\x09",
            short(b"b") + b"\x87q\x0aRq\x0b(K\x01" + integer(len(images)) + integer(3072) + b"\x86q\x0c",
            b"cnumpy\ndtype\nq\x0d" + short(b"u1") + b"K\x00K\x01\x87q\x0eRq\x0f(K\x03" + short(b"|") + b"NNN",
            b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89" + string + b"tb",
            short(b"filenames") + b"q\x10](" + b"".join(short(b"%d.png" % n) for n in range(len(images))) + b"eu.",
        ]
    )


WRITERS: dict[str, Callable[[Images, list[int]], bytes]] = {
    "binary": binary,
    "python2": python2,
    **{f"python3-{protocol}": python3(protocol) for protocol in (3, 4, 5)},
}


def read_all(catalog: ds.Catalog) -> tuple[list[bytes], list[int]]:
    """All records in the order of the catalog, by way of a shuffled plan of two ranks."""
    plan = ds.ShardPlan.for_catalog(catalog, global_batch=4, seed=1, epoch=0)
    found: dict[int, tuple[bytes, int]] = {}
    with ds.RecordReader(catalog) as reader:
        for step in range(plan.steps):
            for rank in range(2):
                shard = plan.shard(rank, 2, step)
                batch = reader.load(shard.ids[shard.weights > 0])
                assert batch.labels is not None
                found.update(zip(batch.ids.tolist(), zip(batch, batch.labels.tolist(), strict=True), strict=True))
    assert sorted(found) == list(range(len(catalog)))
    return [found[number][0] for number in range(len(catalog))], [found[number][1] for number in range(len(catalog))]


@pytest.mark.filterwarnings("ignore::Warning")  # numpy warns of its own old module names
def test_the_python2_writer_of_this_test_writes_what_the_format_means() -> None:
    images, labels = images_of(3), labels_of(3)
    batch = pickle.loads(python2(images, labels), encoding="bytes")
    assert batch[b"labels"] == labels
    assert batch[b"data"].dtype == np.uint8
    np.testing.assert_array_equal(batch[b"data"], images)
    assert batch[b"filenames"] == [b"0.png", b"1.png", b"2.png"]


@pytest.mark.parametrize("writer", WRITERS)
def test_what_was_written_is_read(tmp_path: Path, writer: str) -> None:
    images, labels = images_of(23), labels_of(23)
    for number, part in enumerate((slice(0, 9), slice(9, 23)), 1):
        (tmp_path / f"data_batch_{number}").write_bytes(WRITERS[writer](images[part], labels[part]))
    (tmp_path / "test_batch").write_bytes(WRITERS[writer](images[:2], [9, 9]))
    (tmp_path / "batches.meta").write_bytes(b"anything")
    catalog = ds.Catalog.index(tmp_path)
    assert catalog.format == Cifar10Format()
    assert read_all(catalog) == ([image.tobytes() for image in images], labels)
    test = ds.Catalog.index(tmp_path, format=Cifar10Format(split="test"))
    assert read_all(test) == ([image.tobytes() for image in images[:2]], [9, 9])
    test.save(tmp_path / "saved.npz")
    loaded = ds.Catalog.load(tmp_path / "saved.npz")
    assert (loaded.format, loaded.fingerprint) == (test.format, test.fingerprint)
    assert read_all(loaded) == read_all(test)


def test_a_named_file_is_taken_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(binary(images_of(2), [1, 2]))
    assert len(ds.Catalog.index(tmp_path / "mine", format="cifar10")) == 2


@pytest.mark.parametrize("labels", [[0, 255], [0, 12]])
def test_binary_batches_longer_than_one_piece(tmp_path: Path, labels: list[int]) -> None:
    images = np.tile(images_of(10), (205, 1))
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(binary(images, [*labels_of(2048), *labels]))
    with pytest.raises(ds.CorruptRecordError, match=f"Record 2049 .* label {labels[1]}") as caught:
        ds.Catalog.index(path)
    assert (caught.value.path, caught.value.offset) == (str(path), 2049 * 3073)
    catalog = ds.Catalog.index(path, on_corrupt="mask")
    assert len(catalog) == 2049
    assert catalog.labels is not None
    assert catalog.labels.tolist() == labels_of(2048) + [0]


def test_cifar100_has_two_labels(tmp_path: Path) -> None:
    images, coarse, fine = images_of(5), [0, 19, 3, 4, 5], [99, 0, 50, 60, 70]
    rows = np.column_stack([np.array(coarse, np.uint8), np.array(fine, np.uint8), images])
    batch = {"fine_labels": fine, "coarse_labels": coarse, "data": images}
    (tmp_path / "train.bin").write_bytes(rows.tobytes())
    (tmp_path / "test").write_bytes(pickle.dumps(batch, 4))
    for split, classes, expected in (
        ("train", 100, fine),
        ("train", 20, coarse),
        ("test", 100, fine),
        ("test", 20, coarse),
    ):
        record_format = Cifar10Format(split, classes)  # type: ignore[arg-type]
        catalog = ds.Catalog.index(tmp_path, format=record_format)
        assert read_all(catalog) == ([image.tobytes() for image in images], expected)
    (tmp_path / "test").write_bytes(python2(images, coarse, b"coarse_labels"))
    assert read_all(ds.Catalog.index(tmp_path, format=Cifar10Format("test", 20)))[1] == coarse


def test_decoding_a_batch(tmp_path: Path) -> None:
    images, labels = images_of(6), labels_of(6)
    (tmp_path / "data_batch_1").write_bytes(python2(images, labels))
    with ds.RecordReader(ds.Catalog.index(tmp_path)) as reader:
        records = reader.load(np.array([4, 0, 4]))
    expected = images[[4, 0, 4]].reshape(3, 3, 32, 32)
    first, last = decode_cifar10(records, channels_last=False), decode_cifar10(records)
    np.testing.assert_array_equal(first["image"], expected)
    np.testing.assert_array_equal(last["image"], np.moveaxis(expected, 1, 3))
    assert last["image"].flags.c_contiguous
    assert last["image"].flags.writeable
    assert first["image"].flags.writeable
    assert last["label"].tolist() == [labels[4], labels[0], labels[4]]
    other = ds.RecordBatch([b"abc"], np.arange(1), np.arange(1), np.ones(1, np.bool_))
    with pytest.raises(ds.PlanError, match="3072"):
        decode_cifar10(other)


def dumped(data: Any, labels: Any = (1, 2), protocol: int = 3) -> bytes:
    return pickle.dumps({b"data": data, b"labels": list(labels)}, protocol)


class Bomb:
    """Unpickling it creates a folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        import os

        return os.mkdir, (self.folder,)


TWO = images_of(2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (python3(2)(TWO, [1, 2]), "protocol 2"),
        (dumped(np.asfortranarray(TWO)), "row by row"),
        (dumped(np.asfortranarray(TWO), protocol=5), "row by row"),
        (dumped(TWO.astype(np.int8)), "array of bytes"),
        (dumped(TWO.astype(np.float32)), "array of bytes"),
        (dumped(TWO[:, :3071]), "shape"),
        (dumped(TWO.reshape(2, 3, 32, 32)), "row by row"),
        (dumped(TWO.tobytes()), "array of bytes"),
        (dumped(TWO, [1, 2, 3]), "2 images but 3 labels"),
        (dumped(TWO, [1, None]), "list of integers"),
        (dumped(TWO, [1, 10**30]), "list of integers"),
        (dumped(TWO, [1, 10]), "label 10"),
        (dumped(TWO, [-1, 1]), "label -1"),
        (pickle.dumps({b"data": TWO}, 4), "not 'data' and 'labels'"),
        (pickle.dumps([TWO], 4), "holds a list"),
        (pickle.dumps({b"data": TWO, b"labels": {1, 2}}, 4), "EMPTY_SET"),
        (binary(TWO, [1, 2])[:-1], "ends inside record 1"),
        (binary(TWO, [11, 2]), "neither a pickle"),
        (b"\x00", "neither a pickle"),
        (b"\x80", "ends before"),
        (b"\x80\x02B\xff\xff\xff\xff", "announced"),
        (b"\x80\x02T\xff\xff\xff\xff", "announced"),
        (b"\x80\x02" + b"cab" * 1000, "without an end"),
        (b"\x80\x02(((tttt.", "cannot be followed"),
        (b"\x80\x02)" + b"q\x00h\x00\x86" * 60 + b"K\x01R.", "calls what is not a function"),
        (b"\x80\x02cos\nmkdir\nU\x01aR.", "calls what is not a function"),
        (b"\x80\x02cos\nmkdir\n}U\x01aU\x01bsb.", "cannot be followed"),
        (b"\x80\x02" + b"N" * 2_100_000 + b".", "instructions"),
        (b"\x80\x02" + b"}" + b"K\x01" + b"\x85" * 900_000 + b"Ns.", "not 'data'"),
    ],
)
def test_what_is_no_such_batch_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(content)
    with pytest.raises(ds.CorruptRecordError, match=message) as caught:
        ds.Catalog.index(path)
    assert caught.value.path == str(path)
    assert caught.value.hint


def test_every_truncation_of_a_pickle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1"
    whole = python2(TWO, [1, 2])
    for length in [*range(1, 300), *range(len(whole) - 60, len(whole))]:
        path.write_bytes(whole[:length])
        with pytest.raises(ds.CorruptRecordError):
            ds.Catalog.index(path)


def test_nothing_in_a_pickle_is_executed(tmp_path: Path) -> None:
    path, trap = tmp_path / "data_batch_1", tmp_path / "executed"
    path.write_bytes(pickle.dumps({b"data": Bomb(str(trap)), b"labels": [1]}, 2))
    with pytest.raises(ds.CorruptRecordError, match="array of bytes"):
        ds.Catalog.index(path)
    assert not trap.exists()


@settings(max_examples=300)
@given(st.binary(min_size=1, max_size=400), st.integers(0, 400), st.sampled_from([*WRITERS, "none"]))
def test_garbage_is_refused_or_read_but_never_more(noise: bytes, at: int, writer: str) -> None:
    content = bytearray(WRITERS[writer](TWO, [1, 2]) if writer != "none" else b"\x80")
    content[at : at + len(noise)] = noise
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data_batch_1"
        path.write_bytes(content)
        try:
            catalog = ds.Catalog.index(path)
        except (ds.CorruptRecordError, ds.MissingDataError):
            return
        assert int(catalog.offsets[-1] + catalog.lengths[-1]) <= len(content)


@pytest.mark.parametrize("options", [{"split": "valid"}, {"classes": 11}])
def test_unknown_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ds.PlanError, match="can be"):
        Cifar10Format(**options)
