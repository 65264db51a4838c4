"""The difference of two clocks is found within the error that is told, whatever collectives take."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.ranks import ThreadCommunicator, all_well, run_on_ranks

from hvdtrain.comm.communicator import SerialCommunicator
from hvdtrain.run.tracing.tracer import Offset, clock_offsets, offset
from hvdtrain.topology import Topology

DELAY = st.floats(1e-6, 0.1)
ROUND = st.tuples(DELAY, DELAY, DELAY, DELAY)


def passages(
    rounds: list[tuple[float, float, float, float]], ahead: float
) -> tuple[list[list[float]], list[list[float]]]:
    """When two ranks enter and leave collectives, each by its own clock; the second one's is `ahead`.

    A round: how long after the last one each enters, and how long after both have entered each leaves.
    """
    first, second = [], []
    now = [0.0, 0.0]
    for wait_first, wait_second, leave_first, leave_second in rounds:
        entered = now[0] + wait_first, now[1] + wait_second
        both = max(entered)
        now = [both + leave_first, both + leave_second]
        first.append([entered[0], now[0]])
        second.append([entered[1] + ahead, now[1] + ahead])
    return first, second


@given(st.lists(ROUND, min_size=1, max_size=12), st.floats(-1e4, 1e4))
def test_an_offset_is_within_its_error(rounds: list[tuple[float, float, float, float]], ahead: float) -> None:
    first, second = passages(rounds, ahead)
    found = offset(first, second)
    rounding = 1e-8
    assert abs(found.seconds - ahead) <= found.error + rounding
    assert found.error <= max(max(one) for one in rounds) * 2 + rounding


@given(st.lists(ROUND, min_size=1, max_size=6), ROUND, st.floats(-10, 10))
def test_a_further_collective_never_makes_it_worse(
    rounds: list[tuple[float, float, float, float]], further: tuple[float, float, float, float], ahead: float
) -> None:
    few, more = (offset(*passages(known, ahead)) for known in (rounds, [*rounds, further]))
    assert more.error <= few.error + 1e-9


def test_ranks_with_one_clock_find_no_difference() -> None:
    def work(comm: ThreadCommunicator) -> list[Offset]:
        return clock_offsets(comm)

    for offsets in all_well(run_on_ranks(3, work)):
        assert len(offsets) == 3
        assert all(abs(found.seconds) <= found.error for found in offsets)


def test_one_process() -> None:
    (alone,) = clock_offsets(SerialCommunicator(Topology.single()))
    assert abs(alone.seconds) <= alone.error < 1.0
