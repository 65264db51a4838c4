"""All ranks stop after the same step, soon after any of them was asked to, and no vote is waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.ranks import ThreadCommunicator, all_well, run_on_ranks

from hvdtrain.comm.communicator import Array, Reduction, SerialCommunicator
from hvdtrain.engine.stop_vote import LONGEST_INTERVAL, VOTE_SECONDS, StopVote, next_interval
from hvdtrain.topology import Topology

STEPS = 200


def steps_until_stop(comm: ThreadCommunicator, asked_after: int | None) -> int | None:
    """The step after which this rank stops, where it is asked after a step of its own (0: before the first)."""
    step = 0
    vote = StopVote(comm, lambda: "asked" if asked_after is not None and step >= asked_after else None)
    if vote.open():
        return 0
    for step in range(1, STEPS + 1):
        if vote.after_step():
            return step
    vote.close()
    return None


@given(requests=st.lists(st.one_of(st.none(), st.integers(0, STEPS // 2)), min_size=2, max_size=3))
@settings(max_examples=25, deadline=None)
def test_all_stop_after_the_same_step_soon(requests: list[int | None]) -> None:
    stops = all_well(run_on_ranks(len(requests), lambda comm: steps_until_stop(comm, requests[comm.topology.rank])))
    assert len(set(stops)) == 1
    first = min((request for request in requests if request is not None), default=None)
    if first is None:
        assert stops[0] is None
    else:
        assert stops[0] is not None
        assert first <= stops[0] <= first + 2 * LONGEST_INTERVAL


@pytest.mark.parametrize("step", [0, 1, 2, 7, 50])
def test_one_process_stops_at_once(step: int) -> None:
    count = 0
    vote = StopVote(SerialCommunicator(Topology.single()), lambda: "asked" if count >= step else None)
    assert vote.open() is (step == 0)
    while not vote.decided:
        count += 1
        vote.after_step()
    assert count == step
    assert vote.reason() == "asked"


@final
class LateCommunicator:
    """One of two ranks, whose collectives end only when they are waited for; keeps what happened."""

    def __init__(self) -> None:
        facts = {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "2"}
        from hvdtrain.topology import detect_topology

        self.topology = detect_topology({**facts, "HOROVOD_CROSS_RANK": "0", "HOROVOD_CROSS_SIZE": "1"})
        self.step = 0
        self.started: list[int] = []
        self.waited: list[int] = []

    def start_allreduce(self, array: Array, name: str, op: Reduction = "sum") -> Callable[[], Array]:
        assert (name, op, array.dtype.name, array.shape) == ("hvdtrain.stop.vote", "max", "int64", (5,))
        assert len(self.started) == len(self.waited), "two of one name are under way"
        self.started.append(self.step)

        def wait() -> Array:
            self.waited.append(self.step)
            return array

        return wait

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} would wait for the other rank")


def test_each_vote_has_whole_steps_to_end_in() -> None:
    comm = LateCommunicator()
    vote = StopVote(comm, lambda: None)  # type: ignore[arg-type]
    vote.open()
    for comm.step in range(1, STEPS + 1):
        vote.after_step()
    vote.close()
    assert comm.started[:3] == [0, 0, comm.waited[1]]
    spans = [end - begin for begin, end in zip(comm.started[1:], comm.waited[1:], strict=True)]
    assert spans[0] <= 2
    assert all(1 <= span <= LONGEST_INTERVAL for span in spans[:-1])
    assert max(spans) == LONGEST_INTERVAL, "steps that take no time need no vote each"
    assert len(comm.started) == len(comm.waited), "nothing is left under way"


@pytest.mark.parametrize("per_call", [2, 16, 50])
def test_several_steps_in_one_call_have_one_vote_at_most(per_call: int) -> None:
    """Votes within would take no time, so that steps would seem to take none, and the next vote came too late."""
    comm = LateCommunicator()
    vote = StopVote(comm, lambda: None)  # type: ignore[arg-type]
    vote.open()
    for comm.step in range(per_call, STEPS + 1, per_call):
        vote.after_step(per_call)
    vote.close()
    later = comm.started[2:]
    assert len(later) == len(set(later)) > 0
    spans = [end - begin for begin, end in zip(comm.started[1:], comm.waited[1:], strict=True)]
    assert all(per_call <= span < LONGEST_INTERVAL + per_call for span in spans[:-1])


@given(interval=st.integers(1, LONGEST_INTERVAL), seconds=st.floats(1e-6, 100))
def test_the_next_vote_comes_in_time(interval: int, seconds: float) -> None:
    following = next_interval(interval, seconds)
    assert 1 <= following <= min(2 * interval, LONGEST_INTERVAL)
    assert following == 1 or following * seconds <= VOTE_SECONDS
    assert following == next_interval(interval, seconds)


def test_steps_without_a_time_are_short() -> None:
    assert next_interval(LONGEST_INTERVAL, 0.0) == LONGEST_INTERVAL


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([None, "SIGTERM"], "SIGTERM (rank 1)"),
        (["SIGTERM", "SIGTERM", None], "SIGTERM (ranks 0, 1)"),
        (["SIGUSR1", "SIGUSR1"], "SIGUSR1 (all ranks)"),
        (["SIGINT", None, "SIGTERM"], "SIGINT (rank 0), SIGTERM (rank 2)"),
        (["SIGTERM"] * 5 + [None], "SIGTERM (ranks 0, 1, 2, 3, …)"),
    ],
)
def test_the_reason_names_signals_and_ranks(answers: list[str | None], reason: str) -> None:
    reasons = run_on_ranks(len(answers), lambda comm: StopVote(comm, lambda: answers[comm.topology.rank]).reason())
    assert reasons == [reason] * len(answers)
