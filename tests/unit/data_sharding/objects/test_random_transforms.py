"""Random transforms of an object in a loop of one's own: those of (seed, epoch, item), however items are read."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from data_sharding import Catalog, RecordReader, ShardLoader, ShardPlan
from data_sharding.adapters.torch import ShardBatchSampler, ShardDataset, WithWeights, collate

Seen = dict[int, list[float]]


class Noisy(torch.utils.data.Dataset[Any]):
    """Item i is i with noise from three generators."""

    def __len__(self) -> int:
        return 21

    def __getitem__(self, number: int) -> dict[str, Any]:
        noise = torch.rand(3) + random.random() + np.random.rand()  # noqa: NPY002
        return {"id": number, "image": number + noise}


def decode(records: Any) -> dict[str, Any]:
    arrays: dict[str, Any] = records.collate(records.payloads)
    return {"number": arrays["id"], "image": arrays["image"]}


def by_loader(plan: ShardPlan, catalog: Catalog, rank: int, size: int) -> Iterator[tuple[int, Any]]:
    with RecordReader(catalog) as reader, ShardLoader(plan, reader, decode, rank=rank, size=size) as loader:
        for batch in loader:
            yield from zip(batch.features["number"].tolist(), batch.features["image"].tolist(), strict=True)


def by_torch(workers: int) -> Callable[..., Iterator[tuple[int, Any]]]:
    def read(plan: ShardPlan, catalog: Catalog, rank: int, size: int) -> Iterator[tuple[int, Any]]:
        sampler = ShardBatchSampler(plan, rank, size)
        data = ShardDataset(catalog, decode)
        for batch in DataLoader(data, batch_sampler=sampler, collate_fn=collate, num_workers=workers):  # type: ignore[arg-type]
            yield from zip(batch.features["number"].tolist(), batch.features["image"].tolist(), strict=True)

    return read


def by_torch_alone(workers: int) -> Callable[..., Iterator[tuple[int, Any]]]:
    def read(plan: ShardPlan, _: Catalog, rank: int, size: int) -> Iterator[tuple[int, Any]]:
        sampler = ShardBatchSampler(plan, rank, size)
        for items, _weights in DataLoader(WithWeights(Noisy()), batch_sampler=sampler, num_workers=workers):
            yield from zip(items["id"].tolist(), items["image"].tolist(), strict=True)

    return read


WAYS = {
    "ShardLoader": by_loader,
    "DataLoader": by_torch(0),
    "DataLoader, 2 workers": by_torch(2),
    "own Dataset": by_torch_alone(0),
    "own Dataset, 2 workers": by_torch_alone(2),
}


class Plain(torch.utils.data.Dataset[Any]):
    """Item i is i, without a draw."""

    def __len__(self) -> int:
        return 21

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"id": number, "image": np.full(3, float(number))}


def mixed(items: list[Any]) -> dict[str, Any]:
    """A batch in which each image is mixed with another one's, as MixUp does."""
    images = np.stack([item["image"] for item in items])
    share, order = np.random.beta(1.0, 1.0), torch.randperm(len(items)).numpy()  # noqa: NPY002
    return {
        "id": [item["id"] for item in items],
        "image": share * images + (1 - share) * images[order] + random.random(),
    }


def mixed_pairs(items: list[Any]) -> dict[str, Any]:
    if len(items) % 3:
        raise ValueError("three by three")
    return mixed(items)


CATALOG = Catalog.of(Noisy())
PLAN = ShardPlan.for_catalog(CATALOG, global_batch=6, seed=3, epoch=1)


@pytest.fixture(scope="module")
def expected() -> Seen:
    """Items as one rank's `ShardLoader` makes them, which leaves the generators of this process alone."""
    torch.manual_seed(5)
    seen = dict(by_loader(PLAN, CATALOG, 0, 1))
    after = torch.rand(1)
    torch.manual_seed(5)
    assert torch.rand(1) == after
    return seen


class NoisyInside(Noisy):
    """Draws for items in the middle only, where nobody looks."""

    def __getitem__(self, number: int) -> dict[str, Any]:
        return super().__getitem__(number) if 5 < number < 15 else {"id": number, "image": np.full(3, float(number))}


def test_items_that_draw_where_nobody_looks_are_seeded_if_the_user_says_so() -> None:
    seen = []
    for draws in (None, True):
        catalog = Catalog.of(NoisyInside(), draws=draws)
        plan = ShardPlan.for_catalog(catalog, global_batch=6, seed=3, epoch=1)
        one = dict(by_loader(plan, catalog, 0, 1))
        two = {number: image for rank in range(2) for number, image in by_loader(plan, catalog, rank, 2)}
        seen.append(one == two)
    assert seen == [False, True]


@pytest.mark.parametrize("way", WAYS)
def test_items_do_not_depend_on_who_makes_them(way: str, expected: Seen) -> None:
    two = {number: image for rank in range(2) for number, image in WAYS[way](PLAN, CATALOG, rank, 2)}
    assert two == expected
    assert len(two) == 21
    later: Seen = dict(WAYS[way](dataclasses.replace(PLAN, epoch=2), CATALOG, 0, 1))
    assert all(later[number] != expected[number] for number in expected)


@pytest.mark.parametrize("dataset", [Plain(), Noisy()])
@pytest.mark.parametrize("way", [way for way in WAYS if not way.startswith("own")])
def test_what_a_batch_draws_depends_on_its_items_and_the_epoch(way: str, dataset: Any) -> None:
    catalog = Catalog.of(dataset, collate_fn=mixed)
    plan = ShardPlan.for_catalog(catalog, global_batch=6, seed=3, epoch=1)
    ranks = [dict(by_loader(plan, catalog, rank, 2)) for rank in range(2)]
    assert [dict(WAYS[way](plan, catalog, rank, 2)) for rank in range(2)] == ranks
    later = dict(WAYS[way](dataclasses.replace(plan, epoch=2), catalog, 0, 2))
    assert all(later[number] != ranks[0][number] for number in later.keys() & ranks[0])


def test_slices_of_several_ranks_are_mixed_as_these_ranks_would() -> None:
    catalog = Catalog.of(Plain(), collate_fn=mixed)
    plan = ShardPlan.for_catalog(catalog, global_batch=6, seed=3, epoch=1)
    ranks = {number: image for rank in range(3) for number, image in by_loader(plan, catalog, rank, 3)}
    with RecordReader(catalog) as reader, ShardLoader(plan, reader, decode, rank=0, size=3, slices=3) as loader:
        rows = [zip(*(batch.features[name].tolist() for name in ("number", "image")), strict=True) for batch in loader]
    assert dict(row for batch in rows for row in batch) == ranks


def test_whether_a_batch_draws_is_seen_when_the_catalog_is_made_and_leaves_the_generators_alone() -> None:
    states = [random.getstate(), torch.get_rng_state()]
    kinds = [Catalog.of(Plain(), collate_fn=function).format.draws for function in (None, mixed, list, mixed_pairs)]
    assert kinds == [False, True, False, False]
    assert Catalog.of(Plain(), collate_fn=mixed_pairs, draws=True).format.draws
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
