"""MNIST's idx files: images come with their labels, and files that do not belong together are refused."""

from __future__ import annotations

import gzip
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import data_sharding as ds
from data_sharding.catalog.cache import open_catalog
from data_sharding.formats.mnist import MnistFormat, decode_mnist


def idx(values: NDArray[np.uint8]) -> bytes:
    return bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def images_of(count: int, shape: tuple[int, int] = (28, 28)) -> NDArray[np.uint8]:
    return np.random.default_rng(count).integers(0, 256, (count, *shape), np.uint8)


def labels_of(count: int) -> NDArray[np.uint8]:
    return (np.arange(count) * 7 % 10).astype(np.uint8)


def write(
    folder: Path, images: NDArray[np.uint8], labels: NDArray[np.uint8], stem: str = "train", dot: str = "-"
) -> Path:
    (folder / f"{stem}-labels{dot}idx1-ubyte").write_bytes(idx(labels))
    path = folder / f"{stem}-images{dot}idx3-ubyte"
    path.write_bytes(idx(images))
    return path


@pytest.mark.parametrize("dot", ["-", "."])
def test_each_split_is_found_with_its_labels(tmp_path: Path, dot: str) -> None:
    write(tmp_path, images_of(9), labels_of(9), "train", dot)
    write(tmp_path, images_of(4), labels_of(4)[::-1], "t10k", dot)
    (tmp_path / f"train-images{dot}idx3-ubyte.gz").write_bytes(b"as downloaded")
    for split, count, step in (("train", 9, 1), ("test", 4, -1)):
        catalog = ds.Catalog.index(tmp_path, format=MnistFormat(split))  # type: ignore[arg-type]
        ids = np.arange(count)[::-1]
        with ds.RecordReader(catalog) as reader:
            batch = reader.load(ids)
        decoded = decode_mnist(batch)
        np.testing.assert_array_equal(decoded["image"], images_of(count)[ids])
        assert decoded["image"].flags.writeable
        assert decoded["label"].tolist() == labels_of(count)[::step][ids].tolist()
    assert ds.Catalog.index(tmp_path).format == MnistFormat()


def test_other_shapes_and_more_classes(tmp_path: Path) -> None:
    path = write(tmp_path, images_of(3, (5, 7)), np.array([61, 0, 3], np.uint8), "emnist-train")
    with pytest.raises(ds.CorruptRecordError, match="label 61") as caught:
        ds.Catalog.index(path, format="mnist")
    assert (caught.value.path.split("/")[-1], caught.value.offset) == ("emnist-train-labels-idx1-ubyte", 8)
    catalog = ds.Catalog.index(path, format=MnistFormat(classes=62))
    with ds.RecordReader(catalog) as reader:
        batch = reader.load(np.arange(3))
    np.testing.assert_array_equal(decode_mnist(batch, (5, 7))["image"], images_of(3, (5, 7)))
    with pytest.raises(ds.PlanError, match="28 x 28"):
        decode_mnist(batch)


def test_damage_leaves_the_other_images_with_their_labels(tmp_path: Path) -> None:
    labels = labels_of(9)
    labels[2] = 200
    path = write(tmp_path, images_of(9), labels)
    path.write_bytes(path.read_bytes()[: 16 + 784 * 7 + 1])
    catalog = ds.Catalog.index(path, on_corrupt="mask")
    assert [damage.offset for damage in catalog.damage] == [10, 16 + 784 * 7 + 1]
    with ds.RecordReader(catalog) as reader:
        batch = reader.load(np.arange(len(catalog)))
    kept = [0, 1, 3, 4, 5, 6]
    np.testing.assert_array_equal(decode_mnist(batch)["image"], images_of(9)[kept])
    assert decode_mnist(batch)["label"].tolist() == labels[kept].tolist()


IMAGES, LABELS = idx(images_of(3)), idx(labels_of(3))


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (IMAGES[:-1], LABELS, "cut short"),
        (IMAGES + b"x", LABELS, "longer than it says"),
        (IMAGES[:11], LABELS, "ends inside its header"),
        (IMAGES[:3], LABELS, "does not begin as"),
        (b"\0\0\x0d\3" + IMAGES[4:], LABELS, "does not begin as"),
        (LABELS, LABELS, "does not begin as"),
        (bytes((0, 0, 8, 3)) + b"\xff" * 12 + bytes(784), LABELS, "images of 4294967295 x 4294967295 pixels"),
        (bytes((0, 0, 8, 3)) + struct.pack(">III", 9, 28, 28) + bytes(784), LABELS, "announces 3 labels"),
        (bytes((0, 0, 8, 3)) + struct.pack(">III", 3, 0, 28), LABELS, "0 x 28"),
        (IMAGES, idx(labels_of(4)), "announces 4 labels, and its file of images 3"),
        (IMAGES, LABELS[:-1], "2 bytes of them"),
        (IMAGES, IMAGES, "1 dimensions"),
        (gzip.compress(IMAGES, mtime=0), LABELS, "gzip"),
        (IMAGES, gzip.compress(LABELS, mtime=0), "gzip"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path: Path, images: bytes, labels: bytes, message: str) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(images)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(labels)
    with pytest.raises(ds.CorruptRecordError, match=message) as caught:
        ds.Catalog.index(tmp_path)
    assert caught.value.path in (str(path), str(tmp_path / "train-labels-idx1-ubyte"))
    assert ("gunzip" in caught.value.hint) == (message == "gzip")


def test_images_without_labels_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, images_of(2), labels_of(2))
    labels = tmp_path / "train-labels-idx1-ubyte"
    for spoil in (lambda: labels.write_bytes(b""), labels.unlink):
        act: Callable[[], object] = spoil
        act()
        with pytest.raises(ds.MissingDataError, match="labels are missing") as caught:
            ds.Catalog.index(path)
        assert str(labels) in caught.value.hint
    with pytest.raises(ds.MissingDataError, match="does not say where"):
        ds.Catalog.index(path.rename(tmp_path / "digits"), format="mnist")


@settings(max_examples=200)
@given(st.binary(max_size=60), st.integers(0, 60), st.booleans())
def test_garbage_is_refused_or_read_but_never_more(noise: bytes, at: int, in_labels: bool) -> None:
    parts = [bytearray(IMAGES), bytearray(LABELS)]
    parts[in_labels][at : at + len(noise)] = noise
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train-images-idx3-ubyte"
        path.write_bytes(parts[0])
        (Path(folder) / "train-labels-idx1-ubyte").write_bytes(parts[1])
        try:
            catalog = ds.Catalog.index(path)
        except (ds.CorruptRecordError, ds.MissingDataError):
            return
        assert int(catalog.offsets[-1] + catalog.lengths[-1]) <= len(parts[0])


@pytest.mark.parametrize("options", [{"split": "valid"}, {"classes": 0}, {"classes": 257}])
def test_unknown_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ds.PlanError):
        MnistFormat(**options)  # type: ignore[arg-type]


def test_labels_that_changed_are_seen(tmp_path: Path) -> None:
    """They stand in a file of their own: neither a kept catalog nor a published index would notice."""
    write(tmp_path, images_of(9), labels_of(9))

    def opened() -> ds.Catalog:
        return open_catalog(tmp_path, format="mnist", cache_dir=tmp_path / "cache")

    first = opened()
    with pytest.raises(ds.PlanError, match="labels in files beside them"):
        ds.Catalog.index(tmp_path, format="mnist", publish=True)
    labels = tmp_path / "train-labels-idx1-ubyte"
    labels.write_bytes(idx(labels_of(9)[::-1].copy()))
    again = opened()
    assert again.labels is not None
    assert again.labels.tolist() == labels_of(9)[::-1].tolist()
    assert again.fingerprint != first.fingerprint
    labels.unlink()
    with pytest.raises(ds.MissingDataError, match="labels are missing"):
        opened()
