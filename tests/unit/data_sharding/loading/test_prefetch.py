"""Whatever is made together, and by how many threads: results come in order, and errors at their own place."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_sharding.loading.prefetch import OrderedPrefetch

WAIT_S = 60.0
settings_of = st.fixed_dictionaries(
    {
        "start": st.integers(0, 3),
        "stop": st.integers(0, 40),
        "depth": st.integers(1, 5),
        "threads": st.integers(1, 3),
        "run_s": st.sampled_from([0.0, 1e-5, 1e-3, WAIT_S]),
    }
)


several_of = st.sampled_from([None, lambda produce, indices: [produce(i) for i in indices]])
"""How several are made at once: one by one, or by one call."""


def made_by(produce: Callable[[int], int], several: Any, settings: dict[str, Any]) -> OrderedPrefetch[int]:
    together = None if several is None else functools.partial(several, produce)
    return OrderedPrefetch(produce, timeout_s=WAIT_S, produce_several=together, **settings)


def taken(prefetch: OrderedPrefetch[int]) -> list[int]:
    found = []
    while True:
        try:
            found.append(prefetch.take())
        except StopIteration:
            return found


@given(settings_of, several_of)
def test_results_come_in_order_each_once(settings: dict[str, float], several: Any) -> None:
    made = []
    prefetch = made_by(lambda index: made.append(index) or index, several, settings)
    prefetch.start()
    assert taken(prefetch) == list(range(int(settings["start"]), int(settings["stop"])))
    assert sorted(made) == list(range(int(settings["start"]), int(settings["stop"])))
    prefetch.close()


@given(settings_of, several_of, st.integers(0, 39))
def test_an_error_comes_after_all_results_before_it(settings: dict[str, float], several: Any, bad: int) -> None:
    def produce(index: int) -> int:
        if index == bad:
            raise KeyError(index)
        return index

    start, stop = int(settings["start"]), int(settings["stop"])
    bad += start
    prefetch = made_by(produce, several, settings)
    prefetch.start()
    for index in range(start, min(bad, stop)):
        assert prefetch.take() == index
    with pytest.raises(KeyError if bad < stop else StopIteration):
        prefetch.take()
    prefetch.close()


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
def test_an_error_that_comes_only_once_is_an_error(error: type[BaseException]) -> None:
    """It comes where several are made at once. They are then made one by one to see which it is, and all go well."""
    made: list[range] = []

    def several(indices: range) -> list[int]:
        made.append(indices)
        raise error("once")

    prefetch = OrderedPrefetch(int, 0, 200, depth=1, threads=1, timeout_s=WAIT_S, run_s=1e9, produce_several=several)
    prefetch.start()
    assert prefetch.take() == 0  # by itself
    with pytest.raises(error, match="once"):
        prefetch.take()
    prefetch.close()
    assert made == [range(1, 65)]


def test_an_error_is_told_once_although_it_came_twice() -> None:
    """Together with others, and alone: a traceback would show the first as what the second came from."""

    def produce(index: int) -> int:
        if index:
            raise KeyError(index)
        return index

    settings = {"start": 0, "stop": 3, "depth": 1, "threads": 1, "run_s": WAIT_S}
    prefetch = made_by(produce, lambda produce, indices: [produce(i) for i in indices], settings)
    prefetch.start()
    prefetch.take()
    with pytest.raises(KeyError) as caught:
        prefetch.take()
    prefetch.close()
    assert caught.value.__context__ is None


def test_small_results_are_made_together_and_large_ones_one_by_one() -> None:
    made: list[int] = []

    def several(indices: range) -> list[int]:
        made.append(len(indices))
        return list(indices)

    for run_s in (1e9, 0.0):
        prefetch = OrderedPrefetch(
            int, 0, 200, depth=1, threads=1, timeout_s=WAIT_S, run_s=run_s, produce_several=several
        )
        prefetch.start()
        assert taken(prefetch) == list(range(200))
        prefetch.close()
    assert made == [64, 64, 64, 7]  # after the first one, which shows that they are small
