"""Through the bridges to torch and grain, too, each byte of remote data in the order `block` is read once."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.range_server import RangeServer, serving
from torch.utils.data import DataLoader

import data_sharding as ds
from data_sharding.adapters.grain import PlanSource
from data_sharding.adapters.torch import ShardBatchSampler, ShardDataset, ShardIterable, TorchBatch, collate
from data_sharding.plan.read_cost import read_cost
from data_sharding.reading.shared_blocks import blocks_pay

_SUPPORT = str(Path(__file__).parents[1] / "support")
if _SUPPORT not in sys.path:
    sys.path.insert(0, _SUPPORT)

import importable_decoders as decoders  # noqa: E402

WAIT_S = 60.0
COUNT, SIZE = 2_000, 300
Read = Callable[[ds.ShardPlan, ds.Catalog], list[Any]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RangeServer]:
    folder, random = tmp_path_factory.mktemp("store"), np.random.default_rng(0)
    ds.write_shards(folder, "a", [random.bytes(SIZE) for _ in range(COUNT)], 1)
    with serving(folder) as server:
        yield server


@pytest.fixture(scope="module")
def catalog(store: RangeServer) -> ds.Catalog:
    return ds.Catalog.index([f"{store.url}/{path.name}" for path in store.folder.glob("*.tfrecord")])


def plan_for(catalog: ds.Catalog, epoch: int = 0) -> ds.ShardPlan:
    return ds.ShardPlan.for_catalog(catalog, global_batch=61, seed=3, epoch=epoch, shuffle="block")


def map_style(plan: ds.ShardPlan, catalog: ds.Catalog, workers: int = 0) -> list[TorchBatch]:
    data, sampler = ShardDataset(catalog, decoders.numbers), ShardBatchSampler(plan, 0, 1)
    timeout = WAIT_S if workers else 0
    return list(DataLoader(data, batch_sampler=sampler, collate_fn=collate, num_workers=workers, timeout=timeout))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_fewer_records_than_a_batch_has_slots_are_read_by_all_ranks(catalog: ds.Catalog, size: int) -> None:
    few = catalog.take(np.arange(40, 43))
    plan = ds.ShardPlan.for_catalog(few, global_batch=8, seed=0, epoch=0, shuffle="block")
    used: list[int] = []
    for rank in range(size):
        with (
            ds.RecordReader(few) as reader,
            ds.ShardLoader(plan, reader, decoders.numbers, rank=rank, size=size) as loader,
        ):
            used += [number for batch in loader for number in batch.ids[batch.weights > 0].tolist()]
    assert sorted(used) == [0, 1, 2]


def iterable(plan: ds.ShardPlan, catalog: ds.Catalog) -> list[TorchBatch]:
    return list(DataLoader(ShardIterable(plan, catalog, decoders.numbers, 0, 1), batch_size=None))


def grain(plan: ds.ShardPlan, catalog: ds.Catalog) -> list[ds.LoadedBatch]:
    with ds.RecordReader(catalog) as reader:
        steps = PlanSource(plan, reader, decoders.numbers, rank=0, size=1)
        return [steps[step] for step in range(len(steps))]


@pytest.mark.parametrize(
    "read",
    [map_style, lambda *a: map_style(*a, workers=1), iterable, grain],
    ids=["map", "worker", "iterable", "grain"],
)
def test_a_block_is_asked_for_once(store: RangeServer, catalog: ds.Catalog, read: Read) -> None:
    plan = plan_for(catalog)
    cost = read_cost(plan, catalog, 1)
    assert cost is not None
    store.reset()
    batches = read(plan, catalog)
    seen = np.concatenate([np.asarray(batch.ids)[np.asarray(batch.weights) > 0] for batch in batches])
    assert sorted(seen.tolist()) == list(range(COUNT))
    assert store.bytes <= 1.1 * COUNT * SIZE
    assert store.requests <= 1.5 * cost.requests_per_1000 * COUNT / 1000


def test_batches_are_those_of_our_loader(catalog: ds.Catalog) -> None:
    plan = plan_for(catalog, epoch=2)
    with ds.RecordReader(catalog) as reader, ds.ShardLoader(plan, reader, decoders.numbers, rank=0, size=1) as loader:
        expected = [(batch.ids.tolist(), batch.features["start"].tolist()) for batch in loader]
    for read in (map_style, iterable, grain):
        found = [(batch.ids.tolist(), batch.features["start"].tolist()) for batch in read(plan, catalog)]  # type: ignore[operator]
        assert found == expected


def test_of_small_records_each_worker_reads_the_blocks_once(store: RangeServer, catalog: ds.Catalog) -> None:
    store.reset()
    batches = map_style(plan_for(catalog), catalog, workers=2)
    assert sum(float(batch.weights.sum()) for batch in batches) == COUNT
    assert store.bytes <= 2.2 * COUNT * SIZE


@pytest.mark.parametrize(
    ("size", "processes", "pays"), [(300, 8, True), (300, 400, False), (100_000, 1, True), (100_000, 2, False)]
)
def test_blocks_in_several_processes_pay_for_small_records(
    tmp_path: Path, size: int, processes: int, pays: bool
) -> None:
    ds.write_shards(tmp_path, "a", [bytes(size)] * (20_000 if size < 1_000 else 200), 2)
    catalog = ds.Catalog.index(tmp_path)
    plan = plan_for(catalog)
    ids = plan.shard(0, 1, 3).ids
    ranges = plan.block_ranges(0, 1, ids)
    assert ranges is not None
    assert blocks_pay(catalog, ids, ranges, processes) is pays


def test_a_copy_of_a_source_in_another_process_reads_records(catalog: ds.Catalog) -> None:
    source = PlanSource(plan_for(catalog), ds.RecordReader(catalog), decoders.numbers, rank=0, size=1)
    assert source._planner_of(0)(0).ranges is not None
    copy = pickle.loads(pickle.dumps(source))
    copy._reader._made_in = -1  # as in a worker process
    assert copy._planner_of(0)(0).ranges is None
