"""The neutral rules are torch's SGD, Adam and AdamW, apex's LARS and the published LAMB."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.optimizer_reference import (
    NAMES,
    OPERATIONS,
    OPTIONS,
    Array,
    drawn,
    lamb_as_published,
    lars_as_in_apex,
    train_by_rules,
    warm_up,
)

from hvdtrain.algorithms import update_rules
from hvdtrain.algorithms.update_rules import Settings, corrections, direction, slot_names
from hvdtrain.config import training_options
from hvdtrain.config.training_options import TrainingOptions, describe_optimizer, optimizer_settings

STEPS = 60
seeds = st.integers(0, 1000)
stills = st.sampled_from([0.0, 0.3, 1.0])


def by_torch(options: TrainingOptions, weight: Array, gradients: list[Array]) -> Array:
    """torch's own optimizer, with the options as its documentation names them."""
    parameter = torch.nn.Parameter(torch.from_numpy(weight.copy()))
    decay = 0.0 if options.weight_decay is None else options.weight_decay
    optimizer: torch.optim.Optimizer
    if options.optimizer == "sgd":
        momentum = 0.9 if options.momentum is None else options.momentum
        optimizer = torch.optim.SGD([parameter], momentum=momentum, nesterov=options.nesterov, weight_decay=decay)
    else:
        given_: dict[str, Any] = {
            "betas": (options.beta1, 0.999 if options.beta2 is None else options.beta2),
            **({} if options.eps is None else {"eps": options.eps}),
            **({} if options.weight_decay is None else {"weight_decay": decay}),
        }
        kind = torch.optim.Adam if options.optimizer == "adam" else torch.optim.AdamW
        optimizer = kind([parameter], **given_)
    for step, gradient in enumerate(gradients):
        optimizer.param_groups[0]["lr"] = warm_up(step)
        parameter.grad = torch.from_numpy(gradient)
        optimizer.step()
    return np.asarray(parameter.detach().numpy())


@given(options=OPTIONS["sgd"] | OPTIONS["adam"] | OPTIONS["adamw"], seed=seeds, still=stills)
@settings(max_examples=60)
def test_sgd_adam_and_adamw_are_torch_s(options: TrainingOptions, seed: int, still: float) -> None:
    weight, gradients = drawn(seed, STEPS, (3, 4), still)
    ours = train_by_rules(optimizer_settings(options), warm_up, weight, gradients)
    np.testing.assert_allclose(ours, by_torch(options, weight, gradients), rtol=1e-9, atol=1e-12)


@given(options=OPTIONS["lars"], seed=seeds, still=stills)
@settings(max_examples=40)
def test_lars_is_apex_s(options: TrainingOptions, seed: int, still: float) -> None:
    weight, gradients = drawn(seed, STEPS, (3, 4), still)
    ours = train_by_rules(optimizer_settings(options), warm_up, weight, gradients)
    np.testing.assert_allclose(ours, lars_as_in_apex(options, warm_up, weight, gradients), rtol=1e-9, atol=1e-12)


@given(options=OPTIONS["lamb"], seed=seeds, still=stills)
@settings(max_examples=40)
def test_lamb_is_as_published(options: TrainingOptions, seed: int, still: float) -> None:
    weight, gradients = drawn(seed, STEPS, (3, 4), still)
    ours = train_by_rules(optimizer_settings(options), warm_up, weight, gradients)
    np.testing.assert_allclose(ours, lamb_as_published(options, warm_up, weight, gradients), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["lars", "lamb"])
def test_the_exempt_train_without_norms(name: Any) -> None:
    """LARS is then SGD with momentum, LAMB is Adam, neither with decay."""
    weight, gradients = drawn(3, STEPS, (5,))
    chosen = optimizer_settings(TrainingOptions(optimizer=name, weight_decay=0.3))
    plain = Settings("sgd" if name == "lars" else "adam", eps=chosen.eps)
    np.testing.assert_allclose(
        train_by_rules(chosen.for_exempt(), warm_up, weight, gradients),
        train_by_rules(plain, warm_up, weight, gradients),
        rtol=1e-12,
    )


@given(scale=st.floats(1e-3, 1e3), seed=st.integers(1, 1000).filter(lambda seed: seed % 4))
def test_larger_gradients_make_no_larger_steps(scale: float, seed: int) -> None:
    """What LARS and LAMB are for: a step's size follows the weights', not the gradient's."""
    weight, (gradient,) = drawn(seed, 1, (3, 4))
    for name in ("lars", "lamb"):
        s = Settings(name, eps=1e-12)  # type: ignore[arg-type]
        steps = []
        for given_ in (gradient, scale * gradient):
            slots = {slot: np.zeros_like(weight) for slot in slot_names(s)}
            steps.append(direction(OPERATIONS, s, weight, given_, slots, corrections(s, 1))[0])
        np.testing.assert_allclose(steps[1], steps[0], rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_rule_leaves_its_arguments_alone(name: Any) -> None:
    weight, (gradient,) = drawn(1, 1, (4,))
    s = optimizer_settings(TrainingOptions(optimizer=name, weight_decay=0.1))
    slots = {slot: np.full_like(weight, 0.5) for slot in slot_names(s)}
    before = [array.copy() for array in (weight, gradient, *slots.values())]
    _, after = direction(OPERATIONS, s, weight, gradient, slots, corrections(s, 2))
    for array, kept in zip((weight, gradient, *slots.values()), before, strict=True):
        np.testing.assert_array_equal(array, kept)
    assert tuple(after) == slot_names(s)


def test_an_optimizer_must_be_chosen() -> None:
    with pytest.raises(ValueError, match="no optimizer is chosen"):
        optimizer_settings(TrainingOptions())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (TrainingOptions(optimizer="sgd"), "sgd (momentum 0.9, weight decay 0)"),
        (
            TrainingOptions(optimizer="sgd", nesterov=True, weight_decay=1e-4),
            "sgd (momentum 0.9, weight decay 0.0001, Nesterov)",
        ),
        (TrainingOptions(optimizer="adamw"), "adamw (beta1 0.9, beta2 0.999, eps 1e-08, weight decay 0.01)"),
        (TrainingOptions(optimizer="lamb"), "lamb (beta1 0.9, beta2 0.999, eps 1e-06, weight decay 0.01)"),
        (
            TrainingOptions(optimizer="lars", decay_norm_and_bias=True),
            "lars (momentum 0.9, weight decay 0, trust coefficient 0.001, norm and bias too)",
        ),
    ],
)
def test_what_is_applied_is_said(options: TrainingOptions, words: str) -> None:
    assert describe_optimizer(options) == words


def imported_again(module: ModuleType, old: str = "", new: str = "") -> None:
    """Run the module's source, with a text replaced, as another module."""
    assert module.__file__ is not None
    source = Path(module.__file__).read_text()
    assert old in source
    again = ModuleType("imported_again")
    sys.modules["imported_again"] = again
    try:
        exec(compile(source.replace(old, new), module.__file__, "exec"), again.__dict__)
    finally:
        del sys.modules["imported_again"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"trust_coefficient": 0.001}', '"trust": 0.001}'),
        ('"eps": 1e-6, "weight_decay": 0.01', '"weight_decay": 0.01'),
        ('"eps": 1e-6, "weight_decay": 0.01', '"eps": 1e-6'),
        ("{**_MOMENTUM, ", "{"),
    ],
)
def test_an_option_that_is_misspelt_or_forgotten_is_refused_at_import(old: str, new: str) -> None:
    with pytest.raises(TypeError, match=r"\['(trust|eps|weight_decay|momentum)'\]"):
        imported_again(update_rules, old, new)


def test_an_option_that_nobody_can_give_is_refused_at_import() -> None:
    imported_again(training_options)
    with pytest.raises(TypeError, match=r"\['trust_coefficient'\]"):
        imported_again(training_options, "    trust_coefficient: float", "    trust: float")


@pytest.mark.parametrize("name", update_rules.OPTIMIZERS)
def test_torch_has_the_class_that_an_entry_names(name: str) -> None:
    named = update_rules.OPTIMIZERS[name].torch_class
    assert named is None or issubclass(getattr(torch.optim, named), torch.optim.Optimizer)
