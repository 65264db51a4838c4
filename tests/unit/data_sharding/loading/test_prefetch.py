"""Whatever is made together, and by how many threads: results come in order, and errors at their own place."""

from __future__ import annotations

import threading

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


def taken(prefetch: OrderedPrefetch[int]) -> list[int]:
    found = []
    while True:
        try:
            found.append(prefetch.take())
        except StopIteration:
            return found


@given(settings_of)
def test_results_come_in_order_each_once(settings: dict[str, float]) -> None:
    made = []
    prefetch = OrderedPrefetch(lambda index: made.append(index) or index, timeout_s=WAIT_S, **settings)
    prefetch.start()
    assert taken(prefetch) == list(range(int(settings["start"]), int(settings["stop"])))
    assert sorted(made) == list(range(int(settings["start"]), int(settings["stop"])))
    prefetch.close()


@given(settings_of, st.integers(0, 39))
def test_an_error_comes_after_all_results_before_it(settings: dict[str, float], bad: int) -> None:
    def produce(index: int) -> int:
        if index == bad:
            raise KeyError(index)
        return index

    start, stop = int(settings["start"]), int(settings["stop"])
    bad += start
    prefetch = OrderedPrefetch(produce, timeout_s=WAIT_S, **settings)
    prefetch.start()
    for index in range(start, min(bad, stop)):
        assert prefetch.take() == index
    with pytest.raises(KeyError if bad < stop else StopIteration):
        prefetch.take()
    prefetch.close()


def test_a_run_reads_ahead_and_what_is_ready_does_not_wait_for_its_end() -> None:
    reached, release = threading.Event(), threading.Event()

    def produce(index: int) -> int:
        if index == 4:
            reached.set()
            assert release.wait(WAIT_S)
        return index

    prefetch = OrderedPrefetch(produce, 0, 6, depth=1, threads=1, timeout_s=WAIT_S, run_s=WAIT_S)
    prefetch.start()
    assert reached.wait(WAIT_S)  # further than the depth
    assert [prefetch.take() for _ in range(4)] == [0, 1, 2, 3]
    release.set()
    assert taken(prefetch) == [4, 5]
    prefetch.close()
