"""Every format, from files to labelled batches: index, plan, read; saved and loaded; local and behind a URL."""

from __future__ import annotations

import itertools
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import data_sharding as ds
from data_sharding.formats.cifar10 import Cifar10Format
from data_sharding.formats.image_folder import ImageFolderFormat
from data_sharding.formats.mnist import MnistFormat
from data_sharding.formats.numpy_arrays import NumpyFormat
from data_sharding.formats.parquet import ParquetFormat
from data_sharding.formats.record_format import RecordFormat
from data_sharding.formats.registry import format_of

COUNT = 37
LABELS = [(5 * number + 2) % 3 for number in range(COUNT)]
_NEXT_FOLDER = itertools.count()


def payloads_of(size: int) -> list[bytes]:
    random = np.random.default_rng(size)
    return [random.bytes(size) for _ in range(COUNT)]


def write_cifar10(folder: Path) -> list[bytes]:
    payloads = payloads_of(3072)
    rows = [bytes([label]) + payload for label, payload in zip(LABELS, payloads, strict=True)]
    (folder / "data_batch_1.bin").write_bytes(b"".join(rows[:20]))
    (folder / "data_batch_2.bin").write_bytes(b"".join(rows[20:]))
    return payloads


def write_mnist(folder: Path) -> list[bytes]:
    payloads = payloads_of(784)
    images = bytes((0, 0, 8, 3)) + struct.pack(">III", COUNT, 28, 28) + b"".join(payloads)
    (folder / "train-images-idx3-ubyte").write_bytes(images)
    (folder / "train-labels-idx1-ubyte").write_bytes(bytes((0, 0, 8, 1)) + struct.pack(">I", COUNT) + bytes(LABELS))
    return payloads


def write_npz(folder: Path) -> list[bytes]:
    payloads = payloads_of(20)
    rows = np.frombuffer(b"".join(payloads), "<f4").reshape(COUNT, 5)
    np.savez(folder / "1.npz", x=rows[:9], y=np.array(LABELS[:9]))
    np.savez(folder / "2.npz", x=rows[9:], y=np.array(LABELS[9:]))
    return payloads


def write_parquet(folder: Path) -> list[bytes]:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    payloads = payloads_of(50)
    pq.write_table(pa.table({"image": payloads, "label": LABELS}), folder / "1.parquet", row_group_size=8)
    return payloads


def write_images(folder: Path) -> list[bytes]:
    payloads = payloads_of(50)
    for number, (label, payload) in enumerate(zip(LABELS, payloads, strict=True)):
        path = folder / "abc"[label] / f"{number:02d}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(payload)
    return payloads


WRITERS: dict[str, tuple[Callable[[Path], list[bytes]], RecordFormat]] = {
    "cifar10": (write_cifar10, Cifar10Format()),
    "mnist": (write_mnist, MnistFormat()),
    "npz": (write_npz, NumpyFormat()),
    "parquet": (write_parquet, ParquetFormat()),
    "image_folder": (write_images, ImageFolderFormat()),
}


def read_through_plan(catalog: ds.Catalog) -> dict[bytes, int]:
    """What two ranks read together in an epoch."""
    plan = ds.ShardPlan.for_catalog(catalog, global_batch=8, seed=1, epoch=0)
    found: list[tuple[bytes, int]] = []
    with ds.RecordReader(catalog) as reader:
        for step, rank in itertools.product(range(plan.steps), range(2)):
            shard = plan.shard(rank, 2, step)
            batch = reader.load(shard.ids[shard.weights > 0])
            assert batch.labels is not None
            found += zip(batch, batch.labels.tolist(), strict=True)
    assert len(found) == len(catalog)
    return dict(found)


@pytest.fixture(params=WRITERS)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, RecordFormat, dict[bytes, int]]:
    write, record_format = WRITERS[request.param]
    (tmp_path / "data").mkdir()
    payloads = write(tmp_path / "data")
    return tmp_path / "data", record_format, dict(zip(payloads, LABELS, strict=True))


Written = tuple[Path, RecordFormat, dict[bytes, int]]


def test_an_epoch_has_every_record_with_its_label(written: Written) -> None:
    folder, record_format, expected = written
    assert format_of(folder) == record_format
    catalog = ds.Catalog.index(folder, check_data=True)
    assert catalog.format == record_format.for_paths(folder)
    if record_format.name in ("parquet", "arrow", "mds", "tar"):  # a pattern that says nothing: its files do
        (folder / "_SUCCESS").touch()
        assert format_of(folder / "*").name == record_format.name
    assert read_through_plan(catalog) == expected


def test_a_saved_catalog_is_the_same(written: Written, tmp_path: Path) -> None:
    folder, _, expected = written
    catalog = ds.Catalog.index(folder)
    catalog.save(tmp_path / "saved")
    loaded = ds.Catalog.load(tmp_path / "saved")
    assert (loaded.format, loaded.fingerprint) == (catalog.format, catalog.fingerprint)
    assert read_through_plan(loaded) == expected


@pytest.fixture
def memory_url() -> Iterator[str]:
    fsspec = pytest.importorskip("fsspec")
    url = f"memory://formats-{next(_NEXT_FOLDER)}"
    yield url
    fsspec.filesystem("memory").rm(url, recursive=True)


def test_a_url_holds_what_the_folder_does(written: Written, memory_url: str) -> None:
    folder, record_format, expected = written
    store = pytest.importorskip("fsspec").filesystem("memory")
    for path in folder.rglob("*.*" if record_format.name != "mnist" else "*"):
        if path.is_file():
            with store.open(f"{memory_url}/{path.relative_to(folder)}", "wb") as target, path.open("rb") as source:
                shutil.copyfileobj(source, target)
    catalog = ds.Catalog.index(memory_url, format=record_format)
    assert catalog.fingerprint == ds.Catalog.index(folder).fingerprint
    assert read_through_plan(catalog) == expected
