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
