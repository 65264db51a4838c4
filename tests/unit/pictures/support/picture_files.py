"""Small data sets in the formats in which the real ones are published."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

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


def write_mnist(folder: Path) -> Path:
    """Pairs of idx files in MNIST/raw."""
    inside = folder / "MNIST" / "raw"
    inside.mkdir(parents=True)
    for stem, count in (("train", 60), ("t10k", 20)):
        labels, pixels = _rows(stem, count, 28 * 28)
        head = bytes((0, 0, 8, 3)) + struct.pack(">3I", count, 28, 28)
        (inside / f"{stem}-images-idx3-ubyte").write_bytes(head + pixels.astype(np.uint8).tobytes())
        head = bytes((0, 0, 8, 1)) + struct.pack(">I", count)
        (inside / f"{stem}-labels-idx1-ubyte").write_bytes(head + labels.astype(np.uint8).tobytes())
    return folder


def _rows(name: str, count: int, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    random = np.random.default_rng(len(name) * 1000 + count)
    labels = random.integers(0, CLASSES, count)
    return labels, random.integers(0, 25, (count, size)) + labels[:, None] * 25
