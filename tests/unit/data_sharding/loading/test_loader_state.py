"""A loader's state is a position of the plan: any number of ranks can go on from it, at every step and epoch."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from data_sharding import Catalog, PlanError, RecordBatch, RecordReader, ShardLoader, ShardPlan, plan_at, state_at

CATALOG = Catalog.of({"x": np.arange(45)}, version="1")
PLAN = ShardPlan.for_catalog(CATALOG, global_batch=6, seed=3, epoch=2)


def decode(records: RecordBatch) -> dict[str, NDArray[Any]]:
    return {"x": records.ids}


def loader(rank: int, size: int, plan: ShardPlan = PLAN) -> ShardLoader:
    return ShardLoader(plan, RecordReader(CATALOG), decode, rank=rank, size=size, prefetch=3)


@given(st.integers(0, 19), st.integers(1, 4), st.integers(1, 4))
def test_other_ranks_go_on_where_some_were(taken: int, before: int, after: int) -> None:
    expected = [
        ShardPlan.for_catalog(CATALOG, global_batch=6, seed=3, epoch=e).batch(s) for e in (2, 3, 4) for s in range(8)
    ]
    states = []
    for rank in range(before):
        with loader(rank, before) as batches:
            for number, _ in enumerate(batch for _ in range(3) for batch in batches):
                if number + 1 >= taken:
                    break
            states.append(json.dumps(batches.state_dict()) if taken else json.dumps(state_at(PLAN, 0)))
    assert len(set(states)) == 1
    ids: list[list[int]] = []
    for rank in range(after):
        with loader(rank, after) as batches:
            batches.load_state_dict(json.loads(states[0]))
            first = batches.plan.epoch
            rest = [batch.ids for _ in range(first, 5) for batch in batches]
            assert len(batches) == PLAN.steps
        ids = [[*have, *more] for have, more in zip(ids or [[]] * len(rest), rest, strict=True)]
    assert ids == [batch.ids.tolist() for batch in expected[taken:]]


def test_a_state_that_is_loaded_later_gives_up_what_was_read_ahead() -> None:
    with loader(0, 1) as batches:
        state = batches.state_dict()
        first = [next(batches).ids.tolist() for _ in range(3)]
        batches.load_state_dict(state)
        assert [next(batches).ids.tolist() for _ in range(3)] == first
        assert batches.state_dict() == state_at(PLAN, 3)
    assert plan_at(PLAN, state_at(PLAN, 3)) == (PLAN, 3)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({}, "has no 'epoch'"),
        ('{"epoch": 0}', "type str"),
        (state_at(ShardPlan.for_catalog(CATALOG, global_batch=5, seed=3, epoch=2), 1), "another plan"),
        ({**state_at(PLAN, 1), "samples_seen": 7}, "Position 7"),
    ],
)
def test_a_state_of_something_else_is_refused_and_changes_nothing(state: dict[str, Any], words: str) -> None:
    with loader(0, 1) as batches:
        with pytest.raises(PlanError, match=words):
            batches.load_state_dict(state)
        assert next(batches).ids.tolist() == PLAN.batch(0).ids.tolist()
