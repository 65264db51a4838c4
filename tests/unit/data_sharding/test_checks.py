"""What counts or chooses an order is a whole number of any type; what is none is refused by name, not rounded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import data_sharding as ds
from data_sharding.adapters.torch import ShardBatchSampler
from data_sharding.convert import convert
from data_sharding.loading.decode_processes import DecodeProcesses
from data_sharding.pipe.pipe_loader import PipeSteps
from data_sharding.pipe.pipe_plan import PipeFile, make_plan

NOT_WHOLE: tuple[Any, ...] = (64.5, 8.0, None, "8", np.float32(3), True, np.zeros(2, np.int64))
PLAN = ds.ShardPlan(999, 64, 0, 0, "block")


@pytest.mark.parametrize("name", ["num_records", "global_batch", "seed", "epoch", "block_records", "streams"])
def test_fields_of_a_plan(name: str) -> None:
    whole = dataclasses.replace(PLAN, **{name: np.int64(getattr(PLAN, name))})
    assert type(getattr(whole, name)) is int
    assert (whole, whole.fingerprint) == (PLAN, PLAN.fingerprint)
    for value in NOT_WHOLE:
        with pytest.raises(ds.PlanError, match=f"{name} is .*whole number"):
            dataclasses.replace(PLAN, **{name: value})


SIZED: dict[str, Callable[[Any], Any]] = {
    "rank": lambda value: PLAN.shard(value, 2, 0),
    "size": lambda value: PLAN.shard(0, value, 0),
    "step": lambda value: PLAN.shard(0, 2, value),
    "position": PLAN.step_at,
    "n": lambda value: ds.Permutation(value, 0, 0),
    "seed": lambda value: ds.SampleRandom(value, 0, np.arange(2)),
    "epoch": lambda value: ds.SampleRandom(0, value, np.arange(2)),
    "start_step": lambda value: ShardBatchSampler(PLAN, 0, 1, value),
    "num_records": ds.CoverageAudit,
    "workers_per_host": lambda value: make_plan([PipeFile("a", 9, 1)] * 2, workers_per_host=value),
    "hosts": lambda value: make_plan([PipeFile("a", 9, 1)], workers_per_host=1, hosts=value),
    "global_batch": lambda value: PipeSteps((3, 4), value),
    "num_shards": lambda value: ds.write_shards("nowhere", "a", [b"x"], value),
    "num_shards of convert": lambda value: convert("absent", "nowhere", value),
}


@pytest.mark.parametrize("name", SIZED)
def test_every_constructor(name: str) -> None:
    for value in NOT_WHOLE:
        with pytest.raises(ds.PlanError, match=f"{name.split()[0]} is .*whole number"):
            SIZED[name](value)


@pytest.mark.parametrize("name", ["rank", "size", "start_step", "prefetch", "threads", "processes"])
def test_the_loader(catalog: ds.Catalog, name: str) -> None:
    plan = ds.ShardPlan.for_catalog(catalog, global_batch=8, seed=0, epoch=0)
    with ds.RecordReader(catalog) as reader:
        for value in NOT_WHOLE:
            arguments: dict[str, Any] = {"rank": 0, "size": 1, name: value}
            with pytest.raises(ds.PlanError, match=f"{name} is .*whole number"):
                ds.ShardLoader(plan, reader, len, **arguments)  # type: ignore[arg-type]
        if name == "processes":
            with pytest.raises(ds.PlanError, match="processes is 1.5"):
                DecodeProcesses(reader, len, 1.5)  # type: ignore[arg-type]


def test_draws_do_not_depend_on_the_type_of_the_seed() -> None:
    ids = np.arange(5)
    one, other = (ds.SampleRandom(seed, 1, ids).uniform("x").tolist() for seed in (7, np.int32(7)))
    assert one == other
    first, second = (ds.Permutation(99, seed, 1)(ids).tolist() for seed in (7, np.int32(7)))
    assert first == second
