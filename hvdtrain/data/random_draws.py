"""Notices a `decode` that draws from random generators of the process, or from one of its own.

What these give depends on which thread or process draws first, and on how many there are. So the first records are
decoded twice before training, while nothing else draws, and states and arrays are compared.
"""

import random
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Features = Mapping[str, NDArray[Any]]


class _Generators:
    """The states of Python's, numpy's and, where it is imported, torch's generator of the whole process."""

    NAMES: Final = {"random": "Python's random", "numpy": "numpy.random", "torch": "torch's generator"}

    def __init__(self) -> None:
        self._random, self._numpy = random.getstate(), np.random.get_state()
        torch = sys.modules.get("torch")
        self._torch = None if torch is None else torch.get_rng_state()

    def differing(self, other: "_Generators") -> set[str]:
        """Names of those that drew between the two."""
        torch = self._torch is not None and other._torch is not None and bool((self._torch != other._torch).any())
        numpy = any(not np.array_equal(a, b) for a, b in zip(self._numpy, other._numpy, strict=True))
        drew = {"random": self._random != other._random, "numpy": numpy, "torch": torch}
        return {self.NAMES[name] for name, value in drew.items() if value}

    def restore(self) -> None:
        random.setstate(self._random)
        np.random.set_state(self._numpy)
        if self._torch is not None:
            sys.modules["torch"].set_rng_state(self._torch)


def drawn_from(decode: Callable[[], Features], in_threads: bool) -> str | None:
    """From what `decode`, which decodes the same records at each call, draws random numbers, in words; None: nothing.

    A function that seeds a generator for each record before it draws is right where each process decodes one batch at a
    time, and wrong in threads, which share the generator. All generators are left as they were.

    Args:
        in_threads: whether it will run in threads.
    """
    before = _Generators()
    try:
        first = {name: array.copy() for name, array in decode().items()}  # it may use its memory again
        between = _Generators()
        second = decode()
        after = _Generators()
    finally:
        before.restore()
    drew = between.differing(after) | (before.differing(between) if in_threads else set())
    if drew:
        return " and ".join(sorted(drew))
    same = first.keys() == second.keys() and all(_same(first[name], second[name]) for name in first)
    return None if same else "a generator of its own, as two calls for the same records gave different arrays"


def _same(first: NDArray[Any], second: NDArray[Any]) -> bool:
    if first.dtype.kind == "O":
        return bool(np.array_equal(first, second))
    return first.shape == second.shape and first.tobytes() == second.tobytes()
