"""Random numbers in the making of an item or a batch: found by looking at the generators, made a function of a key."""

import contextlib
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_sharding.objects.items import ItemSource
from data_sharding.sample_random import SampleRandom

_alone = threading.Lock()


def _after_fork() -> None:
    global _alone
    _alone = threading.Lock()  # a thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork)


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


def draws_numbers(source: ItemSource, collate_fn: Callable[[list[Any]], Any] | None = None) -> bool:
    """Whether making the first item or the last, or a batch of both, takes numbers from random, numpy or torch.

    Leaves these as they are.
    """
    if not len(source):
        return False
    with generators_restored() as before:
        items = source.items(np.unique([0, len(source) - 1]))
        if collate_fn is not None:
            # It may refuse so small a batch, or one of the refused items: that comes, and is told, where they are used.
            with contextlib.suppress(Exception):
                collate_fn(list(items))
        return before.have_changed()


def seed(key: int) -> None:
    """Let all draws from here on follow from `key`. Not in several threads: the generators are those of the process."""
    random.seed(key)
    np.random.seed(key & 0xFFFF_FFFF)  # noqa: NPY002
    if (torch := sys.modules.get("torch")) is not None:
        torch.random.default_generator.manual_seed(key)


def made_alike(
    make: Callable[[NDArray[np.int64]], Sequence[Any]], numbers: NDArray[np.int64], random: SampleRandom
) -> list[Any]:
    """Items numbers int64[k], each made alone after all generators were seeded from its row of `random`.

    One thread at a time, for the generators are those of the process. Draws elsewhere at that time would disturb both.
    """
    made: list[Any] = []
    with _alone, generators_restored():
        for number, key in zip(numbers, random.integers("hvdtrain.item", 0, 2**53).tolist(), strict=True):
            seed(key)
            made.extend(make(np.array([number])))
    return made


def batch_made_alike(collate_fn: Callable[[list[Any]], Any], items: Sequence[Any], random: SampleRandom) -> Any:
    """A batch of k items, made after all generators were seeded from the first of the rows of `random`.

    One thread at a time, as `made_alike`.
    """
    with _alone, generators_restored():
        seed(int(random.integers("hvdtrain.batch", 0, 2**53)[0]))
        return collate_fn(list(items))


@contextmanager
def generators_restored() -> Iterator[_States]:
    """Leave the generators as they were before the block, which gets these states."""
    before = _States()
    try:
        yield before
    finally:
        before.restore()
