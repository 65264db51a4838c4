"""What a config refuses by itself, whoever made it."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any

import pytest
from support.config_samples import COMPANIONS, parse

from hvdtrain.config.train_config import DataConfig, TrainConfig
from hvdtrain.errors import UsageError

TOO_SMALL: dict[str, Any] = {
    "epochs": 0,
    "max_steps": 0,
    "batch_size": 0,
    "global_batch_size": -3,
    "reference_batch_size": 0,
    "keep_checkpoints": 0,
    "checkpoint_writers": 0,
    "check_weights_every": 0,
    "hash_every": 0,
    "virtual_workers": 0,
    "compute_threads": 0,
    "log_interval": 0,
    "warmup_epochs": -0.5,
    "checkpoint_interval": -1,
    "seed": -1,
    "stall_timeout": 0.5,
}
OF_KNOBS = (
    *("momentum", "beta1", "beta2", "eps", "weight_decay", "trust_coefficient", "max_grad_norm", "ema_decay"),
    *("accumulate_steps", "steps_per_call", "powersgd_rank", "sync_every", "lr_power", "lr_gamma", "lr_min"),
    *("early_stopping_patience", "early_stopping_min_delta", "bucket_cap_mb"),
    "logger_histograms",
    "logger_pictures",
)


@pytest.mark.parametrize("name", TOO_SMALL)
def test_numbers_below_their_least(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        replace(TrainConfig(), **{name: TOO_SMALL[name]})
    flag = "--" + name.replace("_", "-")
    assert caught.value.fact == f"{flag} is {TOO_SMALL[name]}."
    assert flag in caught.value.hint


@pytest.mark.parametrize(("name", "value"), [("prefetch", 0), ("timeout", 0.0)])
def test_data_numbers_below_their_least(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=rf"--data\.{name} is {value}"):
        TrainConfig(data=replace(DataConfig(), **{name: value}))


@pytest.mark.parametrize("name", ["warmup_epochs", "stall_timeout", "lr"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"--{name.replace('_', '-')} is {value}"):
        replace(TrainConfig(), **{name: value})


@pytest.mark.parametrize("lr", [0.0, -0.1])
def test_a_learning_rate_that_is_not_positive(lr: float) -> None:
    with pytest.raises(UsageError, match=f"--lr is {lr}"):
        TrainConfig(lr=lr)


def test_two_batch_sizes() -> None:
    with pytest.raises(UsageError, match="--batch-size 8 is given with --global-batch-size 16"):
        TrainConfig(batch_size=8, global_batch_size=16)


@pytest.mark.parametrize("scaling", ["linear", "sqrt"])
def test_scaling_without_a_reference(scaling: Any) -> None:
    with pytest.raises(UsageError, match=f"--lr-scaling {scaling} is given without --reference-batch-size"):
        TrainConfig(lr_scaling=scaling)
    assert TrainConfig(lr_scaling=scaling, reference_batch_size=256).lr_scaling == scaling


def test_every_number_has_a_least() -> None:
    """A number added to the config must be added to the checks, and to the table above."""
    numbers = {
        field.name
        for field in fields(TrainConfig)
        if re.search(r"\b(int|float)\b", str(field.type)) and "list" not in str(field.type)
    }
    assert numbers == set(TOO_SMALL) | {"lr"} | set(OF_KNOBS)


@pytest.mark.parametrize("name", OF_KNOBS)
def test_numbers_of_knobs_below_their_least(name: str) -> None:
    flag = "--" + name.replace("_", "-")
    with pytest.raises(UsageError) as caught:
        parse(*COMPANIONS.get(name, ()), flag, "-1")
    assert caught.value.fact.startswith(f"{flag} is -1")
    assert flag in caught.value.hint


def test_the_defaults_are_fine_and_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        TrainConfig().seed = 3  # type: ignore[misc]


@pytest.mark.parametrize("size", ["much", "-1", "512 apples", ""])
def test_memory_for_data_is_a_size(size: str) -> None:
    with pytest.raises(UsageError, match="--data.memory is ") as caught:
        DataConfig(memory=size)
    assert "512MiB" in caught.value.hint
