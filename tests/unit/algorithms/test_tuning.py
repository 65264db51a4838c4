"""What may be measured, and when a setting replaces the default."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.algorithms.tuning import (
    COST,
    FIRST_STEPS,
    GAIN,
    MOST_SECONDS,
    SHORTEST_RUN,
    affordable,
    fastest,
)

SECONDS = st.floats(1e-5, 100)
LOOKS = st.dictionaries(st.integers(1, 9), st.lists(SECONDS, min_size=2, max_size=2), min_size=1)
ARMS = st.lists(st.integers(1, 100), min_size=1, max_size=5, unique=True)


@given(LOOKS, st.data())
def test_the_default_is_replaced_only_by_what_beats_it_in_all_looks(
    looks: dict[int, list[float]], data: st.DataObject
) -> None:
    default = data.draw(st.sampled_from(sorted(looks)))
    chosen = fastest(default, looks)
    if chosen != default:
        assert max(looks[chosen]) < (1 - GAIN) * min(looks[default])
        assert all(max(looks[chosen]) <= max(times) for arm, times in looks.items() if arm != default)
    else:
        assert all(max(times) >= (1 - GAIN) * min(looks[default]) for arm, times in looks.items() if arm != default)


@given(LOOKS, st.data())
def test_the_answer_does_not_depend_on_any_order(looks: dict[int, list[float]], data: st.DataObject) -> None:
    default = data.draw(st.sampled_from(sorted(looks)))
    shuffled = {arm: data.draw(st.permutations(looks[arm])) for arm in data.draw(st.permutations(sorted(looks)))}
    assert fastest(default, shuffled) == fastest(default, looks)


@given(LOOKS, st.floats(0.5, 2))
def test_a_clear_winner_is_chosen(looks: dict[int, list[float]], scale: float) -> None:
    least = min(min(times) for times in looks.values())
    assert fastest(0, {0: [least * scale] * 2, 10: [least * scale / 2] * 2}) == 10


@given(ARMS, st.integers(0, 10**7), SECONDS, st.floats(0, 10), st.floats(0, 60))
def test_the_looks_cost_what_they_may(
    arms: list[int], remaining: int, step: float, change: float, most_seconds: float
) -> None:
    looks = affordable(arms, remaining, step, change, most_seconds)
    if looks is None:
        return
    settings = len(looks.order) // 2
    assert looks.order[:settings] == tuple(arms[:settings])
    assert looks.order == looks.order[::-1]  # ABBA
    assert settings >= 2
    seconds = len(looks.order) * (1 + looks.steps) * step + (settings - 1) * change
    slack = 1 + 1e-9  # of rounding
    assert seconds <= most_seconds * slack
    assert seconds + FIRST_STEPS * step <= COST * remaining * step * slack


@given(SECONDS, st.integers(0, SHORTEST_RUN - 1))
def test_short_runs_are_never_measured(step: float, remaining: int) -> None:
    assert affordable([1, 2], remaining, step, 0.0, 1e9) is None


def test_more_is_measured_where_more_may_be() -> None:
    assert affordable([25, 1, 4], SHORTEST_RUN, 0.01, 0.0) is not None
    cheap = affordable([25, 1, 4], 10**6, 0.01, 0.0)
    assert cheap is not None
    assert cheap.order == (25, 1, 4, 4, 1, 25)
    dear = affordable([25, 1, 4], 10**6, 0.01, MOST_SECONDS / 2)  # two compilations would leave nothing for steps
    assert dear is not None
    assert dear.order == (25, 1, 1, 25)
    assert affordable([25, 1, 4], 10**6, 0.01, MOST_SECONDS) is None
    assert affordable([25], 10**6, 0.01, 0.0) is None
