"""A decode function that draws random numbers which no seed of ours reaches is noticed, and named."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from data_sharding import SampleRandom
from hvdtrain.data.random_draws import drawn_from

ROWS = np.zeros((2, 3), np.float32)
OWN = np.random.default_rng(7)
SEEDED = SampleRandom(1, 0, np.array([4, 9])).integers("seed", 0, 2**31).tolist()


def seeded() -> Any:
    rows = []
    for seed in SEEDED:
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        rows.append(torch.rand(1).numpy() + np.random.rand(1) + random.random())
    return np.stack(rows)


DRAWS: dict[str, tuple[Callable[[], Any], str]] = {
    "numpy": (lambda: ROWS + np.random.rand(2, 1), "numpy.random"),
    "numpy, a multiple of its state": (
        lambda: ROWS + np.random.randint(0, 2**32, 624 * 3, np.uint32)[0],
        "numpy.random",
    ),
    "numpy, the second half of a pair": (lambda: ROWS + np.random.randn(1), "numpy.random"),
    "python": (lambda: ROWS + random.random(), "Python's random"),
    "torch": (lambda: ROWS + torch.rand(2, 1).numpy(), "torch's generator"),
    "two": (lambda: ROWS + torch.rand(1).numpy() + random.gauss(0, 1), "Python's random and torch's generator"),
    "its own": (lambda: ROWS + OWN.random((2, 1)), "a generator of its own"),
    "without an effect": (lambda: ROWS + 0 * np.random.rand(), "numpy.random"),
}


@pytest.mark.parametrize("in_threads", [True, False])
@pytest.mark.parametrize("kind", DRAWS)
def test_draws_are_named_and_undone(kind: str, in_threads: bool) -> None:
    draw, named = DRAWS[kind]
    states = random.getstate(), np.random.get_state()[2:], torch.get_rng_state().tolist()
    drawn = drawn_from(lambda: {"x": draw()}, in_threads)
    assert drawn is not None
    assert drawn.startswith(named)
    assert states == (random.getstate(), np.random.get_state()[2:], torch.get_rng_state().tolist())


def test_seeding_each_record_is_right_in_processes_only() -> None:
    assert drawn_from(lambda: {"x": seeded()}, in_threads=False) is None
    assert (
        drawn_from(lambda: {"x": seeded()}, in_threads=True) == "Python's random and numpy.random and torch's generator"
    )


def test_draws_of_the_record_are_none_of_these() -> None:
    rows, memory = SampleRandom(3, 1, np.array([5, 6])), np.zeros((2, 2))

    def decode() -> dict[str, Any]:
        memory[:] = rows.uniform("u", shape=(2,))  # the same memory at each call
        return {"x": memory, "nan": np.full(2, np.nan), "label": np.array([1, 2])}

    assert drawn_from(decode, in_threads=True) is None


def test_memory_that_is_used_again_hides_nothing() -> None:
    memory = np.zeros((2, 2))

    def decode() -> dict[str, Any]:
        memory[:] = OWN.random((2, 2))
        return {"x": memory}

    assert drawn_from(decode, in_threads=True) is not None


def test_generators_are_as_they_were_after_an_error() -> None:
    def decode() -> dict[str, Any]:
        np.random.rand(5)
        raise ArithmeticError("cannot decode")

    state = np.random.get_state()[2:]
    with pytest.raises(ArithmeticError):
        drawn_from(decode, in_threads=True)
    assert np.random.get_state()[2:] == state
