"""Every option's range, and combinations that cannot work, are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from hvdtrain.config.training_options import TrainingOptions, non_default_options
from hvdtrain.errors import UsageError

OUT_OF_RANGE: list[tuple[dict[str, Any], str]] = [
    ({"accumulate_steps": 0}, "--accumulate-steps is 0"),
    ({"steps_per_call": 0}, "--steps-per-call is 0"),
    ({"sync_every": 0}, "--sync-every is 0"),
    ({"powersgd_rank": 0, "compression": "powersgd"}, "--powersgd-rank is 0"),
    ({"max_grad_norm": 0.0}, "--max-grad-norm is 0"),
    ({"max_grad_norm": float("nan")}, "--max-grad-norm is nan"),
    ({"ema_decay": 1.0}, "--ema-decay is 1"),
    ({"ema_decay": -0.1}, "--ema-decay is -0.1"),
    ({"optimizer": "sgd", "momentum": 1.0}, "--momentum is 1"),
    ({"optimizer": "adam", "beta1": float("nan")}, "--beta1 is nan"),
    ({"optimizer": "adam", "eps": 0.0}, "--eps is 0"),
    ({"optimizer": "adamw", "weight_decay": -1.0}, "--weight-decay is -1"),
    ({"optimizer": "lars", "trust_coefficient": 0.0}, "--trust-coefficient is 0"),
    ({"bucket_cap_mb": 0.0}, "--bucket-cap-mb is 0"),
]
NOT_TOGETHER: list[tuple[dict[str, Any], str]] = [
    ({"momentum": 0.9}, "--momentum 0.9 is given without --optimizer sgd or lars."),
    ({"weight_decay": 0.1}, "--weight-decay 0.1 is given without --optimizer"),
    ({"optimizer": "adam", "momentum": 0.9}, "--momentum 0.9 is given with --optimizer adam."),
    ({"optimizer": "lars", "nesterov": True}, "--nesterov is given with --optimizer lars"),
    ({"optimizer": "sgd", "nesterov": True, "momentum": 0.0}, "--nesterov is given with --momentum 0"),
    ({"optimizer": "sgd", "beta2": 0.9}, "--beta2 0.9 is given with --optimizer sgd"),
    ({"compression": "fp16", "reduce_op": "adasum"}, "--compression fp16 is given with --reduce-op adasum"),
    ({"powersgd_rank": 2}, "--powersgd-rank 2 is given with --compression none"),
    ({"precision": "fp16", "compression": "powersgd"}, "--compression powersgd is given with --precision fp16"),
    ({"sync_every": 4, "compression": "bf16"}, "--compression bf16 is given with --sync-every 4"),
    ({"sync_every": 4, "reduce_op": "sum"}, "--reduce-op sum is given with --sync-every 4"),
    ({"sync_every": 4, "precision": "fp16"}, "--precision fp16 is given with --sync-every 4"),
    ({"sync_every": 4, "sync_batch_norm": True}, "--sync-batch-norm is given with --sync-every 4"),
    ({"process_sets": "node"}, "--process-sets node is given without --sync-every"),
    (
        {"sparse_gradients": "allgather", "compression": "fp16"},
        "--sparse-gradients allgather is given with --compression fp16.",
    ),
    ({"steps_per_call": 4, "accumulate_steps": 2}, "--steps-per-call 4 is given with --accumulate-steps 2."),
    ({"steps_per_call": 4, "precision": "fp16"}, "--steps-per-call 4 is given with --precision fp16."),
    ({"gradient_sync": "horovod", "compression": "fp16"}, "--gradient-sync horovod is given with --compression"),
    ({"gradient_sync": "horovod", "bucket_cap_mb": 4.0}, "--bucket-cap-mb 4 is given with --gradient-sync horovod."),
    ({"bucket_cap_mb": 4.0, "sync_every": 8}, "--bucket-cap-mb 4 is given with --sync-every 8."),
    ({"data_parallel": True, "sync_batch_norm": True}, "--data-parallel is given with --sync-batch-norm."),
]


@pytest.mark.parametrize(("given", "fact"), OUT_OF_RANGE + NOT_TOGETHER)
def test_it_is_refused_by_name(given: dict[str, Any], fact: str) -> None:
    with pytest.raises(UsageError) as caught:
        TrainingOptions(**given)
    assert caught.value.fact.startswith(fact)
    assert caught.value.hint


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"optimizer": "sgd", "nesterov": True, "momentum": 0.8, "weight_decay": 0.0},
        {"optimizer": "lamb", "beta1": 0.0, "eps": 1e-6, "precision": "fp16", "max_grad_norm": 1.0},
        {"compression": "powersgd", "powersgd_rank": 2, "precision": "bf16", "accumulate_steps": 4},
        {"sync_every": 8, "process_sets": "node", "precision": "bf16", "ema_decay": 0.99},
        {"sync_batch_norm": True, "activation_checkpointing": True, "compile": True, "channels_last": True},
    ],
)
def test_what_goes_together_is_taken(given: dict[str, Any]) -> None:
    assert TrainingOptions(**given)


def test_what_is_not_as_usual_is_said() -> None:
    assert non_default_options(TrainingOptions()) == []
    assert non_default_options(TrainingOptions(optimizer="sgd", momentum=0.8)) == []  # told with the optimizer
    assert non_default_options(TrainingOptions(accumulate_steps=4, channels_last=True)) == [
        "accumulate-steps 4",
        "channels-last",
    ]
