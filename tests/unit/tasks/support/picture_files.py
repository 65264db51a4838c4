"""Small data sets in the formats in which the real ones are published."""

from __future__ import annotations

import io
import pickle
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from data_sharding.example import encode
from data_sharding.formats import TarWriter, TFRecordWriter

CLASSES = 10


def write_cifar10(folder: Path, counts: tuple[int, int, int] = (50, 30, 20)) -> Path:
    """Binary batches: a label byte, then 3072 bytes, whose brightness tells the label."""
    for name, count in zip(("data_batch_1", "data_batch_2", "test_batch"), counts, strict=True):
        labels, pixels = _rows(name, count, 3072)
        (folder / f"{name}.bin").write_bytes(np.column_stack([labels, pixels]).astype(np.uint8).tobytes())
    return folder


def write_cifar10_python(folder: Path) -> Path:
    """The python version, as its archive unpacks: pickled dicts in a folder of their own."""
    inside = folder / "cifar-10-batches-py"
    inside.mkdir(parents=True)
    for name, count in (("data_batch_1", 50), ("data_batch_2", 30), ("test_batch", 20)):
        labels, pixels = _rows(name, count, 3072)
        content = {b"labels": labels.tolist(), b"data": pixels.astype(np.uint8)}
        (inside / name).write_bytes(pickle.dumps(content, protocol=4))
    return folder


def write_mnist(folder: Path, side: int = 28) -> Path:
    """Pairs of idx files in MNIST/raw."""
    inside = folder / "MNIST" / "raw"
    inside.mkdir(parents=True)
    for stem, count in (("train", 60), ("t10k", 20)):
        labels, pixels = _rows(stem, count, side * side)
        head = bytes((0, 0, 8, 3)) + struct.pack(">3I", count, side, side)
        (inside / f"{stem}-images-idx3-ubyte").write_bytes(head + pixels.astype(np.uint8).tobytes())
        head = bytes((0, 0, 8, 1)) + struct.pack(">I", count)
        (inside / f"{stem}-labels-idx1-ubyte").write_bytes(head + labels.astype(np.uint8).tobytes())
    return folder


def photo(label: int, width: int, height: int, seed: int = 0, kind: str = "JPEG", mode: str = "RGB") -> bytes:
    """The bytes of a picture file, of smooth noise whose brightness tells the label."""
    random = np.random.default_rng(seed * 100 + label)
    coarse = random.integers(0, 40, (1 + height // 8, 1 + width // 8, 3)) + label * 20
    fine = np.kron(coarse, np.ones((8, 8, 1), np.int64))[:height, :width].astype(np.uint8)
    content = io.BytesIO()
    Image.fromarray(fine).convert(mode).save(content, kind)
    return content.getvalue()


def write_photo_folders(folder: Path, classes: tuple[str, ...] = ("n01", "n02", "n03"), each: int = 7) -> Path:
    """train/CLASS/*.JPEG and val/CLASS/*.JPEG, as ImageNet is usually unpacked; one picture is grey, one CMYK."""
    for split, count in (("train", each), ("val", 3)):
        for label, name in enumerate(classes):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                mode = {0: "L", 1: "CMYK"}.get(number, "RGB")
                content = photo(label, 40 + 8 * number, 90 - 9 * number, number, mode=mode)
                (folder / split / name / f"{name}_{number}.JPEG").write_bytes(content)
    return folder


def write_photo_tars(folder: Path, each: int = 9, labels: tuple[int, ...] = (0, 1, 2)) -> Path:
    """train-*.tar and val-*.tar with members jpg and cls."""
    for name, count in (("train-0", each), ("train-1", each), ("val-0", 6)):
        with TarWriter(folder / f"{name}.tar") as writer:
            for number in range(count):
                label = labels[number % len(labels)]
                writer.write(f"{number:04d}", {"jpg": photo(label, 50, 60, number), "cls": str(label).encode()})
    return folder


def write_photo_tfrecords(folder: Path, each: int = 9, first: int = 1) -> Path:
    """As TensorFlow's build_imagenet_data.py names files and features, with labels from `first` on."""
    for split, shards, count in (("train", 2, each), ("validation", 1, 6)):
        for shard in range(shards):
            with TFRecordWriter(folder / f"{split}-{shard:05d}-of-{shards:05d}") as writer:
                for number in range(count):
                    label = number % 3
                    features = {"image/encoded": photo(label, 50, 60, number), "image/class/label": label + first}
                    writer.write(encode(features))
    return folder


def _rows(name: str, count: int, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    random = np.random.default_rng(len(name) * 1000 + count)
    labels = random.integers(0, CLASSES, count)
    return labels, random.integers(0, 25, (count, size)) + labels[:, None] * 25
