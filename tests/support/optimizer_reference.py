"""Optimizers to compare with: the neutral rules on numpy arrays, and LARS and LAMB again, as published."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from hvdtrain.algorithms.update_rules import Operations, Settings, corrections, direction, slot_names
from hvdtrain.config.training_options import TrainingOptions, optimizer_settings

Array = NDArray[np.float64]
NAMES = ("sgd", "adam", "adamw", "lars", "lamb")
OPERATIONS = Operations(sqrt=np.sqrt, sign=np.sign, norm=np.linalg.norm, where=np.where)
_BETAS = st.sampled_from([0.0, 0.5, 0.9, 0.99])
_DECAYS = st.sampled_from([None, 0.0, 1e-4, 0.1])


def _sgd() -> st.SearchStrategy[TrainingOptions]:
    plain = st.builds(
        TrainingOptions, optimizer=st.just("sgd"), momentum=st.sampled_from([0.0, 0.5]), weight_decay=_DECAYS
    )
    some = st.sampled_from([None, 0.5, 0.99])
    nesterov = st.builds(
        TrainingOptions, optimizer=st.just("sgd"), momentum=some, nesterov=st.booleans(), weight_decay=_DECAYS
    )
    return plain | nesterov


OPTIONS: dict[str, st.SearchStrategy[TrainingOptions]] = {
    "sgd": _sgd(),
    "lars": st.builds(
        TrainingOptions,
        optimizer=st.just("lars"),
        momentum=st.sampled_from([None, 0.0, 0.5]),
        weight_decay=_DECAYS,
        trust_coefficient=st.sampled_from([None, 0.02, 1.0]),
    ),
} | {
    name: st.builds(
        TrainingOptions,
        optimizer=st.just(name),
        beta1=_BETAS,
        beta2=st.sampled_from([None, 0.9, 0.999]),  # with 0, moments are divided by gradients near 0: chaos in float32
        eps=st.sampled_from([None, 1e-8, 1e-3]),
        weight_decay=_DECAYS,
    )
    for name in ("adam", "adamw", "lamb")
}
"""For each optimizer, options that it may be given."""


def train_by_rules(settings: Settings, lr: Callable[[int], float], weight: Array, gradients: Sequence[Array]) -> Array:
    """The weights after one update a gradient, by the neutral rules."""
    slots: dict[str, Any] = {name: np.zeros_like(weight) for name in slot_names(settings)}
    for step, gradient in enumerate(gradients):
        corrected = corrections(settings, step + 1)
        down, slots = direction(OPERATIONS, settings, weight, gradient, slots, corrected)
        weight = weight - lr(step) * down
    return weight


def lars_as_in_apex(
    options: TrainingOptions, lr: Callable[[int], float], weight: Array, gradients: Sequence[Array]
) -> Array:
    """apex/parallel/LARC.py with clip=False around torch.optim.SGD, line by line."""
    s = optimizer_settings(options)
    buffer = np.zeros_like(weight)
    for step, gradient in enumerate(gradients):
        gradient = gradient.copy()
        param_norm, grad_norm = np.linalg.norm(weight), np.linalg.norm(gradient)
        if param_norm != 0 and grad_norm != 0:
            adaptive_lr = s.trust_coefficient * param_norm / (grad_norm + param_norm * s.weight_decay + 1e-8)
            gradient += s.weight_decay * weight
            gradient *= adaptive_lr
        buffer = s.momentum * buffer + gradient
        weight = weight - lr(step) * buffer
    return weight


def lamb_as_published(
    options: TrainingOptions, lr: Callable[[int], float], weight: Array, gradients: Sequence[Array]
) -> Array:
    """You et al. 2019, algorithm 2, with φ(z) = z."""
    s = optimizer_settings(options)
    m, v = np.zeros_like(weight), np.zeros_like(weight)
    for t, gradient in enumerate(gradients, 1):
        m = s.beta1 * m + (1 - s.beta1) * gradient
        v = s.beta2 * v + (1 - s.beta2) * gradient**2
        r = (m / (1 - s.beta1**t)) / (np.sqrt(v / (1 - s.beta2**t)) + s.eps)
        u = r + s.weight_decay * weight
        ratio = np.linalg.norm(weight) / np.linalg.norm(u) if np.any(weight) and np.any(u) else 1.0
        weight = weight - lr(t - 1) * ratio * u
    return weight


def warm_up(step: int) -> float:
    """A learning rate that changes."""
    return 0.002 * (1 + step % 7)


def drawn(seed: int, steps: int, shape: tuple[int, ...], still: float = 0.0) -> tuple[Array, list[Array]]:
    """Weights, all zero for every fourth seed, and as many gradients, a share `still` of which is all zero."""
    random = np.random.default_rng(seed)
    weight = random.normal(size=shape) * (seed % 4 > 0)
    return weight, [random.normal(size=shape) * (random.random() >= still) for _ in range(steps)]
