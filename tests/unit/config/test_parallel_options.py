"""Options of a model in stages: what cannot work is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from hvdtrain.config.parallel_options import ParallelOptions
from hvdtrain.config.training_options import TrainingOptions, non_default_options
from hvdtrain.errors import UsageError


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stages": 0}, "--parallel.stages is 0"),
        ({"stages": 2, "micro_batches": 0}, "--parallel.micro-batches is 0"),
        ({"stages": 2, "micro_batches": "many"}, "--parallel.micro-batches is many"),
        ({"stages": 2, "devices": "cpu"}, "--parallel.devices names 1, and --parallel.stages is 2"),
        ({"stages": 2, "devices": "cpu,cpu,cpu"}, "--parallel.devices names 3"),
        ({"stages": 3, "cuts": "layer2"}, "--parallel.cuts names 1, and --parallel.stages is 3"),
        ({"devices": "cpu"}, "--parallel.devices cpu is given without --parallel.stages"),
        ({"micro_batches": 4}, "--parallel.micro-batches 4 is given without --parallel.stages"),
        ({"cuts": "layer2"}, "--parallel.cuts"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as refused:
        ParallelOptions(**options)
    assert words in refused.value.fact


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"accumulate_steps": 2}, "--accumulate-steps 2"),
        ({"sync_batch_norm": True}, "--sync-batch-norm"),
        ({"compile": True}, "--compile"),
        ({"compression": "powersgd"}, "--compression powersgd"),
        ({"compression": "bf16"}, "--compression bf16"),
        ({"reduce_op": "adasum"}, "--reduce-op adasum"),
        ({"sync_every": 4}, "--sync-every 4"),
        ({"sparse_gradients": "allgather"}, "--sparse-gradients allgather"),
        ({"gradient_sync": "horovod"}, "--gradient-sync horovod"),
        ({"shard": "gradients"}, "--shard gradients"),
        ({"data_parallel": True}, "--data-parallel"),
        ({"steps_per_call": 3}, "--steps-per-call 3"),
    ],
)
def test_what_does_not_go_with_stages_is_named(other: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as refused:
        TrainingOptions(**other, parallel=ParallelOptions(2))
    assert refused.value.fact == f"--parallel.stages 2 is given with {words}."
    TrainingOptions(**other)


def test_stages_are_of_workers_unless_devices_are_named() -> None:
    assert ParallelOptions(3).stages_of_workers == 3
    assert ParallelOptions(2, "cpu, cpu").stages_of_workers == 1
    assert ParallelOptions(2, "cpu, cpu").device_names == ["cpu", "cpu"]
    assert ParallelOptions(3, cuts="layer2, fc").cut_names == ["layer2", "fc"]


def test_they_are_told_with_the_other_options() -> None:
    options = TrainingOptions(parallel=ParallelOptions(2, micro_batches=4))
    assert non_default_options(options) == ["parallel.stages 2", "parallel.micro-batches 4"]
