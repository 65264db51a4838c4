"""Which gradient sync options ask for, by the world's size: one table for both frameworks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hvdtrain.adapters.choose_sync import BUCKET_BYTES, choose_sync
from hvdtrain.algorithms.clipping import NO_CLIPPING, Clipping
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.topology import Topology


@pytest.mark.parametrize(
    ("options", "alone", "of_four"),
    [
        ({}, ("none", "plain", 1.0), ("buckets", "plain", 1.0)),
        ({"reduce_op": "sum"}, ("none", "plain", 1.0), ("buckets", "plain", 4.0)),
        ({"reduce_op": "adasum"}, ("none", "adasum", 1.0), ("buckets", "adasum", 4.0)),
        ({"compression": "fp16"}, ("none", "fp16", 1.0), ("buckets", "fp16", 1.0)),
        ({"compression": "bf16", "reduce_op": "sum"}, ("none", "bf16", 1.0), ("buckets", "bf16", 4.0)),
        ({"compression": "powersgd"}, ("buckets", "powersgd", 1.0), ("buckets", "powersgd", 4.0)),
        ({"gradient_sync": "horovod", "reduce_op": "sum"}, ("none", "plain", 1.0), ("each", "plain", 4.0)),
        ({"shard": "gradients"}, ("none", "plain", 1.0), ("sharded", "plain", 1.0)),
        ({"sync_every": 3}, ("none", "plain", 1.0), ("local", "plain", 4.0)),
        ({"sparse_gradients": "allgather"}, ("sparse", "plain", 1.0), ("sparse", "plain", 1.0)),
    ],
)
def test_kind_hook_and_multiplier(options: dict[str, Any], alone: tuple[Any, ...], of_four: tuple[Any, ...]) -> None:
    for topology, expected in ((Topology.single(), alone), (Topology(1, 4, 1, 4), of_four)):
        chosen = choose_sync(TrainingOptions(**options), topology)
        assert (chosen.kind, chosen.hook, chosen.loss_multiplier) == expected


def test_local_sgd_sums_over_nobody_else_and_a_stage_over_its_own_ranks() -> None:
    four = Topology(1, 4, 1, 4)
    assert choose_sync(TrainingOptions(sync_every=3), four).ranks == 1
    stage: Any = SimpleNamespace(size=lambda: 2)
    chosen = choose_sync(TrainingOptions(reduce_op="sum"), four, stage)
    assert (chosen.ranks, chosen.loss_multiplier, chosen.process_set) == (2, 2.0, stage)


@pytest.mark.parametrize(
    ("options", "nbytes"),
    [({}, BUCKET_BYTES), ({"bucket_cap_mb": 0.5}, 2**19), ({"gradient_sync": "horovod"}, 1)],
)
def test_the_largest_bucket(options: dict[str, Any], nbytes: int) -> None:
    assert choose_sync(TrainingOptions(**options), Topology(0, 2, 0, 2)).bucket_bytes == nbytes


def test_clipping_leaves_what_is_within_the_limit_and_computes_a_norm_only_where_it_is_needed() -> None:
    clipping = Clipping(2.0)
    assert clipping.factor(1.0) == 1.0
    assert clipping.factor(8.0) == pytest.approx(0.25, rel=1e-6)
    assert clipping.factor(0.0) == 1.0
    assert NO_CLIPPING.factor(1e9) == 1.0
    needs = [each.needs_norm for each in (clipping, NO_CLIPPING, Clipping(logs_norm=True))]
    assert needs == [True, False, True]
