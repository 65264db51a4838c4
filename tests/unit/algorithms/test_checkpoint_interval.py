"""The interval of Young and Daly loses less time than any other."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.algorithms.checkpoint_interval import young_daly


def lost(interval: float, cost: float, mtbf: float) -> float:
    """Daly's expected seconds for a second of useful work, without the restart: exp failures."""
    return mtbf / interval * math.expm1((interval + cost) / mtbf)


@given(
    cost=st.floats(0.01, 100),
    mtbf=st.floats(3600, 10**6),
    other=st.floats(0.2, 5).filter(lambda factor: abs(factor - 1) > 0.2),
)
def test_no_other_interval_loses_less(cost: float, mtbf: float, other: float) -> None:
    chosen = young_daly(cost, mtbf)
    assert lost(chosen, cost, mtbf) <= lost(other * chosen, cost, mtbf) * (1 + 1e-9)


def test_where_a_checkpoint_costs_more_than_half_the_time_between_failures() -> None:
    assert young_daly(60.0, 100.0) == 100.0
