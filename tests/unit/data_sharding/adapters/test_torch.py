"""A DataLoader gives each rank the batches of its plan, with any number of workers and from any position."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import pickle
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, SequentialSampler

import data_sharding as ds
from data_sharding.adapters.torch import (
    ShardBatchSampler,
    ShardDataset,
    ShardIterable,
    TorchBatch,
    WithWeights,
    collate,
    to_torch,
)
from data_sharding.plan.step_slots import StepSlots
from data_sharding.reading.fork_safe_reader import ForkSafeReader

_SUPPORT = str(Path(__file__).parents[1] / "support")
if _SUPPORT not in sys.path:
    sys.path.insert(0, _SUPPORT)

import importable_decoders as decoders  # noqa: E402

WAIT_S = 60.0
# DataLoader warns of more workers than cores; how they share the steps does not depend on cores.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def plan_for(catalog: ds.Catalog, **changes: Any) -> ds.ShardPlan:
    return ds.ShardPlan.for_catalog(catalog, **{"global_batch": 8, "seed": 5, "epoch": 1, **changes})


def expected_batches(catalog: ds.Catalog, plan: ds.ShardPlan, rank: int, size: int, start: int = 0) -> list[TorchBatch]:
    with (
        ds.RecordReader(catalog) as reader,
        ds.ShardLoader(plan, reader, decoders.numbers, rank=rank, size=size, start_step=start, augment=True) as loader,
    ):
        return [to_torch(batch) for batch in loader]


def map_style(catalog: ds.Catalog, sampler: ShardBatchSampler, workers: int = 0, **options: Any) -> Any:
    options = {"timeout": WAIT_S if workers else 0, **options}
    data = ShardDataset(catalog, decoders.numbers)
    return DataLoader(data, batch_sampler=sampler, collate_fn=collate, num_workers=workers, **options)


def iterable(data: ShardIterable, workers: int = 0, **options: Any) -> Any:
    return DataLoader(data, batch_size=None, num_workers=workers, timeout=WAIT_S if workers else 0, **options)


def assert_same(ours: list[TorchBatch], theirs: list[TorchBatch]) -> None:
    assert [batch.step for batch in ours] == [batch.step for batch in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.global_weight == other.global_weight
        tensors = {"ids": mine.ids, "weights": mine.weights, **mine.features}
        others = {"ids": other.ids, "weights": other.weights, **other.features}
        assert tensors.keys() == others.keys()
        for name, tensor in tensors.items():
            assert tensor.dtype == others[name].dtype
            assert torch.equal(tensor, others[name])


def test_tensors_equal_the_loaded_arrays(catalog: ds.Catalog) -> None:
    plan = plan_for(catalog)
    with (
        ds.RecordReader(catalog) as reader,
        ds.ShardLoader(plan, reader, decoders.contents, rank=1, size=3, augment=True) as loader,
    ):
        for batch in loader:
            tensors = to_torch(batch)
            assert (tensors.step, tensors.global_weight) == (batch.step, batch.global_weight)
            assert np.array_equal(tensors.ids.numpy(), batch.ids)
            assert np.array_equal(tensors.weights.numpy(), batch.weights)
            assert tensors.features["payload"] is batch.features["payload"]
            for name in ("length", "start", "every_other", "draws"):
                assert np.array_equal(tensors.features[name].numpy(), batch.features[name])


@pytest.mark.parametrize(
    "array",
    [np.arange(4)[::-1], np.arange(4).astype(">i4"), np.broadcast_to(np.float32(3), (4,)), np.ones(4, np.bool_)],
)
def test_arrays_that_torch_does_not_take_as_they_are_become_tensors(array: np.ndarray) -> None:
    batch = ds.LoadedBatch(0, np.arange(4), np.ones(4, np.float32), {"x": array}, 4.0)
    assert to_torch(batch).features["x"].tolist() == array.tolist()


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize(("rank", "size", "start"), [(0, 1, 0), (2, 3, 3), (1, 2, 8)])
def test_both_styles_give_the_ranks_batches(
    catalog: ds.Catalog, workers: int, rank: int, size: int, start: int
) -> None:
    plan = plan_for(catalog)
    expected = expected_batches(catalog, plan, rank, size, start)
    sampler = ShardBatchSampler(plan, rank, size, start, augment=True)
    loader = map_style(catalog, sampler, workers)
    assert len(loader) == plan.steps - start
    assert_same(list(loader), expected)
    data = ShardIterable(plan, catalog, decoders.numbers, rank, size, start, augment=True)
    loader = iterable(data, workers)
    assert len(loader) == plan.steps - start
    assert_same(list(loader), expected)


def test_all_ranks_together_read_every_record_once(catalog: ds.Catalog) -> None:
    plan, audit = plan_for(catalog), ds.CoverageAudit(len(catalog))
    for rank in range(3):
        for batch in map_style(catalog, ShardBatchSampler(plan, rank, 3)):
            audit.add(batch.ids.numpy(), batch.weights.numpy())
    assert audit.complete


@pytest.mark.parametrize("style", ["map", "iterable"])
def test_spawned_workers_open_the_files_for_themselves(catalog: ds.Catalog, style: str) -> None:
    plan = plan_for(catalog)
    sampler = ShardBatchSampler(plan, 0, 1, augment=True)
    data = ShardIterable(plan, catalog, decoders.numbers, 0, 1, augment=True)
    loader = (
        map_style(catalog, sampler, 1, multiprocessing_context="spawn")
        if style == "map"
        else iterable(data, 1, multiprocessing_context="spawn")
    )
    assert_same(list(loader), expected_batches(catalog, plan, 0, 1))


def test_a_used_data_set_is_pickled_and_forked_without_its_files(catalog: ds.Catalog) -> None:
    data = ShardDataset(catalog, decoders.process)
    own = data[3]["pid"]
    copy = pickle.loads(pickle.dumps(data))
    assert copy._reader.get()._files is not data._reader.get()._files
    assert copy[3]["pid"] == own
    loader = DataLoader(data, batch_size=5, num_workers=1, timeout=WAIT_S)
    assert {int(pid) for batch in loader for pid in batch["pid"]}.isdisjoint({int(own)})


def test_a_fork_does_not_use_its_parents_reader(catalog: ds.Catalog, by_id: list[bytes]) -> None:
    held = ForkSafeReader(ds.RecordReader(catalog))
    inherited = held.get()
    assert held.get() is inherited

    def in_a_fork() -> None:
        own = held.get()
        sys.exit(0 if own is not inherited and own.read(np.array([4])) == [by_id[4]] else 1)

    process = multiprocessing.get_context("fork").Process(target=in_a_fork)
    process.start()
    process.join(WAIT_S)
    assert process.exitcode == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_default_collate_and_samplers_of_torch_work_too(catalog: ds.Catalog, by_id: list[bytes], workers: int) -> None:
    data = ShardDataset(catalog, decoders.numbers)
    assert len(data) == len(catalog)
    loader = DataLoader(data, batch_size=10, num_workers=workers, timeout=WAIT_S if workers else 0)
    batches = list(loader)
    assert torch.cat([batch["length"] for batch in batches]).tolist() == [len(payload) for payload in by_id]
    assert torch.cat([batch["id"] for batch in batches]).tolist() == list(range(len(catalog)))
    assert torch.cat([batch["weight"] for batch in batches]).tolist() == [1.0] * len(catalog)
    last = list(DataLoader(data, batch_sampler=ShardBatchSampler(plan_for(catalog), 0, 1)))[-1]
    assert last["weight"].tolist() == plan_for(catalog).batch(7).weights.tolist() == [1.0] + [0.0] * 7
    assert data[4]["length"] == len(by_id[4])
    assert list(SequentialSampler(data)) == list(range(len(catalog)))


def test_slots_are_a_sequence_of_ids(catalog: ds.Catalog) -> None:
    slots = next(iter(ShardBatchSampler(plan_for(catalog), 1, 2)))
    ids = plan_for(catalog).shard(1, 2, 0).ids.tolist()
    assert (list(slots), len(slots), slots[1], slots[1:3]) == (ids, 4, ids[1], ids[1:3])
    assert all(type(record) is int for record in slots)


def test_epochs_follow_one_another(catalog: ds.Catalog) -> None:
    sampler = ShardBatchSampler(plan_for(catalog, epoch=0), 0, 1, 2, augment=True)
    data = ShardIterable(plan_for(catalog, epoch=0), catalog, decoders.numbers, 0, 1, 2, augment=True)
    kept = iterable(data, 2, persistent_workers=True)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        data.set_epoch(epoch)
        expected = expected_batches(catalog, plan_for(catalog, epoch=epoch), 0, 1, 2 if epoch == 0 else 0)
        assert_same(list(map_style(catalog, sampler)), expected)
        assert len(kept) == len(expected)  # asked before each pass: DataLoader remembers it, and warns otherwise
        assert_same(list(kept), expected)
    with pytest.raises(ds.PlanError, match="epoch is -1"):
        sampler.set_epoch(-1)


@pytest.mark.parametrize("style", ["map", "iterable"])
def test_every_position_resumes_at_every_size(catalog: ds.Catalog, style: str) -> None:
    first = ShardBatchSampler(plan_for(catalog), 0, 2, augment=True)
    whole = {size: expected_batches(catalog, plan_for(catalog), size - 1, size) for size in (1, 3)}
    for step, size in itertools.product(range(first.plan.steps + 1), (1, 3)):
        state = first.state_dict(step)
        assert state == {"epoch": 1, "samples_seen": 8 * step, "fingerprint": first.plan.fingerprint}
        elsewhere = plan_for(catalog, epoch=0)
        resumed: Any
        if style == "map":
            resumed = ShardBatchSampler(elsewhere, size - 1, size, augment=True)
        else:
            resumed = ShardIterable(elsewhere, catalog, decoders.numbers, size - 1, size, augment=True)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        resumed.set_epoch(1)  # as a training loop does for every epoch, the loaded one too
        loader = map_style(catalog, resumed) if style == "map" else iterable(resumed)
        assert len(loader) == first.plan.steps - step
        assert_same(list(loader), whole[size][step:])


def test_a_pass_can_be_saved_and_restored_as_a_stateful_data_loader_does(catalog: ds.Catalog) -> None:
    begun = iter(ShardBatchSampler(plan_for(catalog), 0, 1))
    taken = [next(begun).step for _ in range(3)]
    state = pickle.loads(pickle.dumps(begun.state_dict()))
    other = iter(ShardBatchSampler(plan_for(catalog, epoch=0), 0, 1))
    next(other)
    other.load_state_dict(state)
    assert taken == [0, 1, 2]
    assert [slots.ids.tolist() for slots in other] == [slots.ids.tolist() for slots in begun] != []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fingerprint": "other"}, "another plan"),
        ({"samples_seen": 3}, "Position 3"),
        ({"samples_seen": 80}, "Position 80"),
        ({"epoch": None}, "has no 'epoch'"),
    ],
)
def test_states_that_do_not_fit_are_refused(catalog: ds.Catalog, change: Mapping[str, Any], message: str) -> None:
    sampler = ShardBatchSampler(plan_for(catalog), 0, 1)
    state = {name: value for name, value in {**sampler.state_dict(2), **change}.items() if value is not None}
    with pytest.raises(ds.PlanError, match=message):
        sampler.load_state_dict(state)
    assert sampler.state_dict() == ShardBatchSampler(plan_for(catalog), 0, 1).state_dict()


@pytest.mark.parametrize(
    ("rank", "size", "start", "message"),
    [(1, 1, 0, "Rank 1 of size 1"), (0, 9, 0, "--global-batch-size to 9"), (0, 1, 9, "Position 72")],
)
def test_impossible_arguments_are_refused(catalog: ds.Catalog, rank: int, size: int, start: int, message: str) -> None:
    with pytest.raises(ds.PlanError, match=message):
        ShardBatchSampler(plan_for(catalog), rank, size, start)
    with pytest.raises(ds.PlanError, match=message):
        ShardIterable(plan_for(catalog), catalog, decoders.numbers, rank, size, start)


def test_a_plan_for_other_data_is_refused(catalog: ds.Catalog) -> None:
    other = ds.ShardPlan(57, 8, 0, 0, data_fingerprint="other")
    with pytest.raises(ds.PlanError, match="other data"):
        ShardIterable(other, catalog, decoders.numbers, 0, 1)
    with pytest.raises(ds.PlanError, match="other data"):
        next(iter(map_style(catalog, ShardBatchSampler(other, 0, 1))))


@pytest.fixture
def damaged(data_folder: Path, tmp_path: Path) -> ds.Catalog:
    """A copy of the data with one bit of the last record of the second file turned."""
    folder = Path(shutil.copytree(data_folder, tmp_path / "copy"))
    path = sorted(folder.iterdir())[1]
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    return ds.Catalog.index(folder)


@pytest.mark.parametrize("workers", [0, 1])
def test_damage_is_raised_or_masked(damaged: ds.Catalog, workers: int) -> None:
    plan = plan_for(damaged)
    kinds = (ds.CorruptRecordError, RuntimeError)  # torch makes the latter of errors of its workers
    with pytest.raises(kinds[workers], match="is damaged") as caught:
        list(iterable(ShardIterable(plan, damaged, decoders.numbers, 0, 1), workers))
    assert workers == 0 or "CorruptRecordError" in str(caught.value)
    loader = map_style(damaged, ShardBatchSampler(plan, 0, 1), workers)
    with pytest.raises(kinds[workers], match="is damaged"):
        list(loader)
    masked = ShardIterable(plan, damaged, decoders.numbers, 0, 1, on_corrupt="mask")
    weights = sum(float(batch.weights.sum()) for batch in iterable(masked, workers))
    assert weights == len(damaged) - 1


def test_a_feature_named_like_the_mask_is_refused(catalog: ds.Catalog) -> None:
    data = ShardDataset(catalog, lambda records: {"weight": np.zeros(len(records))})
    with pytest.raises(ds.PlanError, match="'weight'"):
        data[0]


def test_collate_takes_whole_batches_only() -> None:
    with pytest.raises(ds.PlanError, match="collate was given list"):
        collate([{"x": 1}])  # type: ignore[arg-type]


def test_rows_and_slices_of_a_batch(catalog: ds.Catalog, by_id: list[bytes]) -> None:
    rows = ShardDataset(catalog, decoders.numbers).__getitems__([5, 3, 9])
    assert [row["id"] for row in rows] == [5, 3, 9] == [row["id"] for row in rows[:]]
    assert rows[-1]["length"] == len(by_id[9])
    with pytest.raises(IndexError):
        rows[3]


def test_leaving_early_leaves_nothing_behind(catalog: ds.Catalog) -> None:
    before = set(multiprocessing.active_children())
    loader = iter(map_style(catalog, ShardBatchSampler(plan_for(catalog), 0, 1), 2))
    next(loader)
    workers = set(multiprocessing.active_children()) - before
    assert len(workers) == 2
    del loader
    gc.collect()
    for worker in workers:
        worker.join(WAIT_S)
        assert not worker.is_alive()


def test_slots_of_ids_are_real_records() -> None:
    slots = StepSlots.of_ids([3, 1])
    assert (slots.step, list(slots), slots.weights.tolist(), slots.global_weight) == (-1, [3, 1], [1.0, 1.0], 2.0)


def test_a_pass_over_single_records_ends(catalog: ds.Catalog) -> None:
    assert [int(row["id"]) for row in ShardDataset(catalog, decoders.numbers)] == list(range(len(catalog)))


class Numbers(Dataset[int]):
    """Somebody's own map-style data set, of as many items as the catalog has records."""

    def __len__(self) -> int:
        return 57

    def __getitem__(self, index: int) -> int:
        return index * 10


class NumbersAtOnce(Numbers):
    def __getitems__(self, indices: list[int]) -> list[int]:
        assert type(indices) is list
        return [index * 10 for index in indices]


@pytest.mark.parametrize("data", [Numbers(), NumbersAtOnce()])
@pytest.mark.parametrize("workers", [0, 2])
def test_data_sets_of_ones_own_get_the_weights_of_the_slots(catalog: ds.Catalog, data: Numbers, workers: int) -> None:
    plan = plan_for(catalog)
    sampler = ShardBatchSampler(plan, 1, 2)
    batches = list(DataLoader(WithWeights(data), batch_sampler=sampler, num_workers=workers))
    for step, (items, weights) in enumerate(batches):
        ids, expected = plan.shard(1, 2, step)
        assert items.tolist() == (ids * 10).tolist()
        assert (weights.dtype, weights.tolist()) == (torch.float32, expected.tolist())
    assert batches[-1][1].tolist() == [0.0] * 4  # rank 1 has none of the last step's one record
    assert list(DataLoader(WithWeights(data), batch_size=57))[0][1].tolist() == [1.0] * 57
    assert (len(WithWeights(data)), WithWeights(data)[3]) == (57, (30, np.float32(1)))


def test_masked_slots_that_would_pass_for_records_are_warned_of(catalog: ds.Catalog) -> None:
    with pytest.warns(UserWarning, match="masked slots.*WithWeights"):
        list(DataLoader(Numbers(), batch_sampler=ShardBatchSampler(plan_for(catalog), 0, 1)))
    whole = ds.ShardPlan.for_catalog(catalog, global_batch=19, seed=0, epoch=0)
    dropping = plan_for(catalog, tail="drop")
    for plan in (whole, dropping):  # nothing is masked: filterwarnings makes a warning an error
        list(DataLoader(Numbers(), batch_sampler=ShardBatchSampler(plan, 0, 1)))
