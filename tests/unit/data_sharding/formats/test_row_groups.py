"""Groups of rows in training: read group by group, kept in bounded memory, and read here for decode processes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import data_sharding as ds
from data_sharding.kept_blocks import KEPT

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import importable_decoders as decoders  # noqa: E402

ROWS, IN_A_GROUP, EACH = 4_000, 100, 500


@pytest.fixture
def catalog(tmp_path: Path) -> ds.Catalog:
    """40 row groups of 50 KB in two files; a row's bytes are its number, over and over."""
    for file in range(2):
        numbers = range(file * ROWS // 2, (file + 1) * ROWS // 2)
        blobs = [number.to_bytes(4, "big") * (EACH // 4) for number in numbers]
        table = pa.table({"blob": pa.array(blobs, pa.binary()), "label": pa.array(list(numbers), pa.int64())})
        pq.write_table(table, tmp_path / f"{file}.parquet", row_group_size=IN_A_GROUP)
    return ds.Catalog.index(tmp_path)


@pytest.fixture
def small_memory() -> Iterator[None]:
    """Room for 16 of the 40 groups."""
    limit = KEPT.limit
    ds.keep_at_most(16 * IN_A_GROUP * (EACH + 20))
    yield
    ds.keep_at_most(limit)


def first_numbers(records: ds.RecordBatch) -> dict[str, np.ndarray]:
    return {"number": np.array([int.from_bytes(payload[:4], "big") for payload in records]), "label": records.labels}


def plan_for(catalog: ds.Catalog, shuffle: Literal["global", "block", "none"], epoch: int = 0) -> ds.ShardPlan:
    return ds.ShardPlan.for_catalog(catalog, global_batch=64, seed=1, epoch=epoch, shuffle=shuffle)


def test_row_groups_are_the_blocks(catalog: ds.Catalog, tmp_path: Path) -> None:
    assert catalog.group_begins is not None
    assert catalog.group_begins.tolist() == [*range(0, ROWS, IN_A_GROUP)]
    plan = plan_for(catalog, "block")
    assert (plan.streams, plan.block_ranges(0, 1, np.arange(3))) == (10, None)
    part = catalog.take(np.arange(150, 350))
    assert part.group_begins is not None
    assert part.group_begins.tolist() == [0, 50, 150]
    catalog.save(tmp_path / "saved.npz")
    assert plan_for(ds.Catalog.load(tmp_path / "saved.npz"), "block").fingerprint == plan.fingerprint


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.usefixtures("small_memory")
def test_every_row_comes_once_whatever_memory_there_is(catalog: ds.Catalog, size: int) -> None:
    seen: list[int] = []
    for rank in range(size):
        with (
            ds.RecordReader(catalog) as reader,
            ds.ShardLoader(plan_for(catalog, "block"), reader, first_numbers, rank=rank, size=size) as loader,
        ):
            for batch in loader:
                assert np.array_equal(batch.features["number"], batch.ids)
                assert np.array_equal(batch.features["label"], batch.ids)
                seen += batch.ids[batch.weights > 0].tolist()
    assert sorted(seen) == [*range(ROWS)]


@pytest.mark.usefixtures("small_memory")
@pytest.mark.parametrize(("shuffle", "warns"), [("global", 1), ("block", 0), ("none", 0)])
def test_a_shuffle_of_more_than_fits_is_told_once(
    catalog: ds.Catalog, caplog: pytest.LogCaptureFixture, shuffle: Literal["global", "block", "none"], warns: int
) -> None:
    with (
        caplog.at_level(logging.WARNING, "data_sharding"),
        ds.RecordReader(catalog) as reader,
        ds.ShardLoader(plan_for(catalog, shuffle), reader, first_numbers, rank=0, size=1) as loader,
    ):
        for _ in range(2):
            list(loader)
    assert [record.message.count("--data.shuffle block") for record in caplog.records] == [1] * warns


def test_nothing_is_told_of_what_fits(catalog: ds.Catalog, caplog: pytest.LogCaptureFixture) -> None:
    with (
        ds.RecordReader(catalog) as reader,
        ds.ShardLoader(plan_for(catalog, "global"), reader, first_numbers, rank=0, size=1) as loader,
    ):
        list(loader)
    assert not caplog.records


@pytest.mark.parametrize("shuffle", ["global", "block"])
def test_processes_decode_what_is_read_here(catalog: ds.Catalog, shuffle: Literal["global", "block"]) -> None:
    plan = plan_for(catalog, shuffle, epoch=2)
    with (
        ds.RecordReader(catalog) as reader,
        ds.ShardLoader(plan, reader, decoders.contents, rank=0, size=2) as here,
        ds.ShardLoader(plan, reader, decoders.contents, rank=0, size=2, processes=2) as there,
    ):
        for ours, theirs in zip(here, there, strict=True):
            assert np.array_equal(ours.ids, theirs.ids)
            for name, array in ours.features.items():
                assert np.array_equal(array, theirs.features[name])


def test_damage_is_masked_in_processes_too(tmp_path: Path) -> None:
    blobs = [b"x" * 40, None, b"y" * 40, b"z" * 40] * 10
    pq.write_table(pa.table({"blob": pa.array(blobs, pa.binary())}), tmp_path / "a.parquet", row_group_size=8)
    plan = ds.ShardPlan.for_catalog(ds.Catalog.index(tmp_path), global_batch=8, seed=1, epoch=0)
    with (
        ds.RecordReader(ds.Catalog.index(tmp_path), on_corrupt="mask") as reader,
        ds.ShardLoader(plan, reader, decoders.contents, rank=0, size=1, processes=1) as loader,
    ):
        batches = list(loader)
    assert sum(float(batch.weights.sum()) for batch in batches) == 30
    assert sorted(np.concatenate([batch.damaged for batch in batches]).tolist()) == [*range(1, 40, 4)]


def test_texts_that_rows_share_are_read_however_large_all_of_them_would_be(tmp_path: Path) -> None:
    """3 GB in a column of one group, which no array of Arrow holds: nobody may decode it as a whole."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 3000, pa.int32()), pa.array(["x" * 1_000_000]))
    table = pa.table({"text": texts, "number": pa.array(range(3000), pa.uint64())})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with ds.RecordReader(ds.Catalog.index(tmp_path / "a.arrow")) as reader:
        (record,) = reader.read(np.array([2999]))
    decoded = ds.example.decode(record)
    assert len(decoded["text"][0]) == 1_000_000
    assert decoded["number"].tolist() == [2999]
