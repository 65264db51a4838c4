"""The division of a chain is the best of all divisions."""

from __future__ import annotations

from functools import partial
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.algorithms.chain_cuts import LinkCost, balanced_cuts
from hvdtrain.algorithms.pipeline_schedule import micro_batches_in_flight

LINKS = st.lists(
    st.builds(LinkCost, st.integers(0, 9).map(float), st.integers(0, 9), st.booleans(), st.integers(0, 2)),
    min_size=1,
    max_size=7,
)


def in_flight(stages: int, number: int) -> int:
    return micro_batches_in_flight("1f1b", stages, 3, number)


def times(links: list[LinkCost], cuts: tuple[int, ...], most: float) -> list[float] | None:
    """Of the stages; None where one trains nothing or does not fit."""
    ends = [0, *cuts, len(links)]
    stages = [links[start:end] for start, end in zip(ends, ends[1:], strict=False)]
    needed = [
        sum(one.nbytes + in_flight(len(stages), number) * one.kept for one in own) for number, own in enumerate(stages)
    ]
    fits = max(needed) <= most and all(any(one.is_trained for one in own) for own in stages)
    return [sum(one.seconds for one in own) for own in stages] if fits else None


@given(links=LINKS, stages=st.integers(1, 5), most=st.sampled_from([5.0, 12.0, float("inf")]))
def test_no_other_division_has_a_faster_slowest_stage(links: list[LinkCost], stages: int, most: float) -> None:
    possible = [times(links, cuts, most) for cuts in combinations(range(1, len(links)), stages - 1)]
    best = min((max(found) for found in possible if found is not None), default=None)
    cuts = balanced_cuts(links, stages, most, partial(in_flight, stages))
    if best is None:
        assert cuts is None
    else:
        assert cuts is not None
        assert max(times(links, cuts, most) or []) == best


def test_equal_links_are_dealt_out_equally() -> None:
    assert balanced_cuts([LinkCost(1.0)] * 8, 4) == (2, 4, 6)


def test_a_long_chain_needs_no_deep_recursion() -> None:
    cuts = balanced_cuts([LinkCost(1.0)] * 3000, 2)
    assert cuts == (1500,)
