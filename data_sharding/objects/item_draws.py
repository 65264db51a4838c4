"""Random numbers in the making of an item: found by looking at the generators, and made a function of a key."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from data_sharding.objects.items import ItemSource


class _States:
    """Of the generators of this process: Python's, numpy's, and torch's on the CPU if torch was imported."""

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy = np.random.get_state()  # noqa: NPY002  transforms of others draw from it
        torch = sys.modules.get("torch")
        self._torch = None if torch is None else torch.random.default_generator.get_state()

    def have_changed(self) -> bool:
        now = _States()
        numpy_same = all(np.array_equal(*pair) for pair in zip(self._numpy, now._numpy, strict=True))
        torch_same = self._torch is None or self._torch.equal(now._torch)
        return not (self._python == now._python and numpy_same and torch_same)

    def restore(self) -> None:
        random.setstate(self._python)
        np.random.set_state(self._numpy)  # noqa: NPY002
        if self._torch is not None:
            sys.modules["torch"].random.default_generator.set_state(self._torch)


def draws_numbers(source: ItemSource) -> bool:
    """Whether making the first item or the last takes numbers from random, numpy or torch. Leaves these as they are."""
    if not len(source):
        return False
    before = _States()
    source.items(np.unique([0, len(source) - 1]))
    has_drawn = before.have_changed()
    before.restore()
    return has_drawn


def seed(key: int) -> None:
    """Let all draws from here on follow from `key`. Not in several threads: the generators are those of the process."""
    random.seed(key)
    np.random.seed(key & 0xFFFF_FFFF)  # noqa: NPY002
    if (torch := sys.modules.get("torch")) is not None:
        torch.random.default_generator.manual_seed(key)


@contextmanager
def generators_restored() -> Iterator[None]:
    """Leave the generators as they were before the block."""
    before = _States()
    try:
        yield
    finally:
        before.restore()
