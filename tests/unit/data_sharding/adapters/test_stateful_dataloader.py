"""torchdata's StatefulDataLoader resumes a rank's batches at exactly the step behind the last one that was taken."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

import data_sharding as ds
from data_sharding.adapters.torch import ShardBatchSampler, ShardDataset, ShardIterable, collate

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import importable_decoders as decoders  # noqa: E402

STEPS = 8  # 57 records by 8
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than cores: slower, but the same
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata 0.11 under torch 2.13
]


def plan_for(catalog: ds.Catalog, epoch: int) -> ds.ShardPlan:
    return ds.ShardPlan.for_catalog(catalog, global_batch=8, seed=5, epoch=epoch)


class Job:
    """A training script's data: a stateful loader over one of the two styles, which may be a resumed one."""

    def __init__(self, catalog: ds.Catalog, style: str, workers: int, epoch: int = 0, **options: Any) -> None:
        plan = plan_for(catalog, epoch)
        options |= {"num_workers": workers, "timeout": 60.0 if workers else 0}
        self.sampler: Any
        if style == "map":
            self.sampler = ShardBatchSampler(plan, 0, 2)
            data = ShardDataset(catalog, decoders.numbers)
            self.loader = StatefulDataLoader(data, batch_sampler=self.sampler, collate_fn=collate, **options)
        else:
            self.sampler = ShardIterable(plan, catalog, decoders.numbers, 0, 2)
            self.loader = StatefulDataLoader(self.sampler, batch_size=None, **options)

    def rest_of(self, epochs: range) -> list[list[int]]:
        taken = []
        for epoch in epochs:
            self.sampler.set_epoch(epoch)
            taken += [batch.ids.tolist() for batch in self.loader]
        return taken


def planned(catalog: ds.Catalog, epochs: range) -> list[list[int]]:
    plans = [plan_for(catalog, epoch) for epoch in epochs]
    return [plan.shard(0, 2, step).ids.tolist() for plan in plans for step in range(plan.steps)]


@pytest.mark.parametrize("style", ["iterable", "map"])
@pytest.mark.parametrize(("workers", "prefetch"), [(0, None), (1, 2), (2, 1), (3, 4)])
def test_every_step_resumes_exactly(catalog: ds.Catalog, style: str, workers: int, prefetch: int | None) -> None:
    first = Job(catalog, style, workers, prefetch_factor=prefetch)
    first.sampler.set_epoch(3)
    states = [first.loader.state_dict()]
    for _ in first.loader:
        states.append(pickle.loads(pickle.dumps(first.loader.state_dict())))
    assert len(states) == STEPS + 1
    states.append(first.loader.state_dict())  # behind the loop, where the script goes on with the next epoch
    expected = planned(catalog, range(3, 5))
    # Every step without workers; with them, whose start takes its time, those around a round of the workers.
    for number in range(STEPS + 2) if not workers else (0, 1, 3, 4, 7, 8, 9):
        resumed = Job(catalog, style, workers, prefetch_factor=prefetch)
        resumed.loader.load_state_dict(states[number])
        assert (
            resumed.rest_of(range(3 if number <= STEPS else 4, 5)) == expected[number if number <= STEPS else STEPS :]
        )


@pytest.mark.parametrize("style", ["iterable", "map"])
def test_workers_that_are_kept_go_on_with_whole_epochs(catalog: ds.Catalog, style: str) -> None:
    first = Job(catalog, style, 2, persistent_workers=True)
    iterator = iter(first.loader)
    for _ in range(5):
        next(iterator)
    resumed = Job(catalog, style, 2, persistent_workers=True)
    resumed.loader.load_state_dict(first.loader.state_dict())
    assert resumed.rest_of(range(3)) == planned(catalog, range(3))[5:]


@pytest.mark.parametrize("style", ["iterable", "map"])
def test_a_resumed_pass_leaves_the_passes_behind_it_as_they_were(catalog: ds.Catalog, style: str) -> None:
    first = Job(catalog, style, 0)
    iterator = iter(first.loader)
    for _ in range(5):
        next(iterator)
    resumed = Job(catalog, style, 0)
    resumed.loader.load_state_dict(first.loader.state_dict())
    epoch = planned(catalog, range(1))
    passes = [[batch.ids.tolist() for batch in resumed.loader] for _ in range(2)]
    assert passes == [epoch[5:], epoch]  # without set_epoch a pass repeats its epoch, as in the first job


def test_another_number_of_workers_is_refused(catalog: ds.Catalog) -> None:
    first = Job(catalog, "iterable", 2)
    next(iter(first.loader))
    state = first.loader.state_dict()
    resumed = Job(catalog, "iterable", 3)
    resumed.loader.load_state_dict(state)
    with pytest.raises(Exception, match="saved by 2 DataLoader workers and loaded by 3"):
        next(iter(resumed.loader))
