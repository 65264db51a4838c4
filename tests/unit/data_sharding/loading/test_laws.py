"""The laws of the package, for every format: exact coverage, equal steps at every world size, resume without a trace.

A run is cut at random steps and goes on with another number of ranks. What all ranks together were given must be every
record once, with its own payload and label; and each step must hold the records that one uninterrupted rank gets.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import data_sharding as ds
from data_sharding.formats.tar_members import tar_members
from data_sharding.formats.writers import RecordIOWriter, TarWriter


@dataclass(frozen=True)
class Written:
    """What was written: for each record its content, and its label where the format keeps labels."""

    folder: Path
    format: str
    contents: list[bytes]
    labels: list[int] | None = None
    content_of: Callable[[bytes], bytes] = bytes


def contents_of(number: int, size: int) -> list[bytes]:
    """Distinct byte strings: the number, then filling; one length for formats of fixed rows (size > 0)."""
    random = np.random.default_rng(number)
    lengths = [size or int(random.integers(4, 60)) for _ in range(number)]
    return [index.to_bytes(4, "little") + random.bytes(length - 4) for index, length in enumerate(lengths)]


def parts(contents: list[Any], files: int) -> list[list[Any]]:
    """Contiguous parts, none empty as far as there are records."""
    cuts = np.linspace(0, len(contents), min(files, len(contents)) + 1).astype(int)
    return [contents[begin:end] for begin, end in zip(cuts, cuts[1:], strict=False)]


def write_tfrecord(folder: Path, number: int, files: int) -> Written:
    contents = contents_of(number, 0)
    for index, part in enumerate(parts(contents, files)):
        with ds.TFRecordWriter(folder / f"{index}.tfrecord") as writer:
            for content in part:
                writer.write(content)
    return Written(folder, "tfrecord", contents)


def write_recordio(folder: Path, number: int, files: int) -> Written:
    contents = contents_of(number, 0)
    for index, part in enumerate(parts(contents, files)):
        with RecordIOWriter(folder / f"{index}.rec") as writer:
            for content in part:
                writer.write(content)
    return Written(folder, "recordio", contents)


def write_tar(folder: Path, number: int, files: int) -> Written:
    contents = contents_of(number, 0)
    numbered = list(enumerate(contents))
    for index, part in enumerate(parts(numbered, files)):
        with TarWriter(folder / f"{index}.tar") as writer:
            for key, content in part:
                writer.write(f"{key:06d}", {"bin": content, "txt": b"x"})
    return Written(folder, "tar", contents, content_of=lambda payload: tar_members(payload)["bin"])


def write_cifar10(folder: Path, number: int, files: int) -> Written:
    contents = contents_of(number, 3072)
    labels = [index % 10 for index in range(number)]
    rows = [bytes([label]) + content for label, content in zip(labels, contents, strict=True)]
    for index, part in enumerate(parts(rows, min(files, 5))):
        (folder / f"data_batch_{index + 1}.bin").write_bytes(b"".join(part))
    return Written(folder, "cifar10", contents, labels)


def write_npz(folder: Path, number: int, files: int) -> Written:
    contents = contents_of(number, 12)
    labels = list(range(number, 2 * number))
    pairs = list(zip(contents, labels, strict=True))
    for index, part in enumerate(parts(pairs, files)):
        rows = np.frombuffer(b"".join(content for content, _ in part), np.uint8).reshape(-1, 12)
        np.savez(folder / f"{index}.npz", x=rows, y=np.array([label for _, label in part]))
    return Written(folder, "npz", contents, labels)


def write_image_folder(folder: Path, number: int, files: int) -> Written:
    classes = min(files, number)
    contents = contents_of(number, 0)
    labels = [index * classes // number for index in range(number)]
    for index, (content, label) in enumerate(zip(contents, labels, strict=True)):
        path = folder / f"class{label:02d}" / f"{index:05d}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    return Written(folder, "image_folder", contents, labels)


WRITERS = [write_tfrecord, write_recordio, write_tar, write_cifar10, write_npz, write_image_folder]


def decode(records: ds.RecordBatch, content_of: Callable[[bytes], bytes]) -> dict[str, np.ndarray]:
    contents = np.empty(len(records), object)
    contents[:] = [content_of(record) for record in records]
    draws = records.random.integers("draw", 0, 2**40) if records.random is not None else np.zeros(len(records), int)
    labels = records.labels if records.labels is not None else np.full(len(records), -1)
    return {"content": contents, "draw": draws, "label": labels}


def rows_of(batch: ds.LoadedBatch) -> list[tuple[int, bytes, int, int]]:
    """Real records of a batch: id, content, label, and a draw for augmentation."""
    columns = (batch.ids, batch.features["content"], batch.features["label"], batch.features["draw"])
    return [row for row, weight in zip(zip(*columns, strict=True), batch.weights, strict=True) if weight > 0]


def run(plan: ds.ShardPlan, reader: ds.RecordReader, written: Written, size: int, first: int, end: int) -> list[Any]:
    """What ranks 0 to size - 1 are given in the steps [first, end): for each step a sorted list of rows."""
    steps: list[list[Any]] = [[] for _ in range(first, end)]
    for rank in range(size):
        turn = functools.partial(decode, content_of=written.content_of)
        with ds.ShardLoader(
            plan, reader, turn, rank=rank, size=size, start_step=first, augment=True, timeout_s=60.0
        ) as loader:
            for step, batch in zip(steps, loader, strict=False):
                step += rows_of(batch)
    return [sorted(step) for step in steps]


@pytest.mark.parametrize("write", WRITERS)
@settings(deadline=None, max_examples=12)
@given(data=st.data())
def test_every_record_once_however_a_run_is_cut(
    write: Callable[[Path, int, int], Written], data: st.DataObject
) -> None:
    number = data.draw(st.integers(1, 40), label="records")
    batch = data.draw(st.integers(1, 24), label="global batch")
    files = data.draw(st.integers(1, 4), label="files")
    orders = [("global", "records"), ("global", "bytes"), ("block", "records"), ("none", "records"), ("none", "bytes")]
    shuffle, balance = data.draw(st.sampled_from(orders))
    seed, epoch = data.draw(st.integers(0, 99), label="seed"), data.draw(st.integers(0, 3), label="epoch")
    with tempfile.TemporaryDirectory() as name:
        written = write(Path(name), number, files)
        options = {"root": name} if written.format == "image_folder" else {}
        catalog = ds.Catalog.index(name, format=ds.format_named(written.format, options))
        plan = ds.ShardPlan.for_catalog(
            catalog, global_batch=batch, seed=seed, epoch=epoch, shuffle=shuffle, balance=balance
        )
        cuts = data.draw(st.lists(st.integers(0, plan.steps), max_size=3).map(sorted), label="crashes")
        with ds.RecordReader(catalog) as reader:
            whole = run(plan, reader, written, 1, 0, plan.steps)
            got = []
            for first, end in zip([0, *cuts], [*cuts, plan.steps], strict=True):
                size = data.draw(st.integers(1, min(batch, 5)), label="ranks")
                got += run(plan, reader, written, size, first, end)
    assert got == whole
    rows = sorted(row for step in got for row in step)
    assert [row[0] for row in rows] == list(range(number))
    assert sorted(row[1] for row in rows) == sorted(written.contents)
    if written.labels is not None:
        assert sorted((row[1], row[2]) for row in rows) == sorted(zip(written.contents, written.labels, strict=True))
