"""Ranks that take longer than others over what all must have done: who waits, for how long, and how it ends."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from support.commands import Forker
from support.ranks import ThreadCommunicator, World, all_well, run_on_ranks

from hvdtrain.comm import messages
from hvdtrain.comm.messages import do_while_others_wait
from hvdtrain.errors import PeerError

DEADLINE_S = 60.0


@pytest.mark.parametrize("size", [2, 3])
def test_all_get_their_results_and_no_collective_lasts_as_long_as_the_work(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "_BEAT_SECONDS", 0.05)

    def rank_main(comm: ThreadCommunicator) -> tuple[int, int]:
        rank = comm.topology.rank

        def work() -> int:
            end = time.monotonic() + DEADLINE_S
            while len(comm.names) < 3 * rank and time.monotonic() < end:  # the other ranks' rounds are its own too
                time.sleep(0.01)
            return rank

        own = do_while_others_wait(comm, work, "test", 60.0)
        comm.barrier("after")
        return own, len(comm.names) - 2  # without the last one of the waiting ranks, and the barrier

    results = all_well(run_on_ranks(size, rank_main))
    assert [own for own, _ in results] == list(range(size))
    rounds = {count for _, count in results}
    assert len(rounds) == 1
    assert rounds.pop() >= (size - 1) * 3


def test_a_rank_whose_work_fails_leaves_at_once_and_the_others_learn_it() -> None:
    def rank_main(comm: ThreadCommunicator) -> None:
        def work() -> None:
            if comm.topology.rank == 1:
                raise RuntimeError("own")

        do_while_others_wait(comm, work, "test", 60.0)

    results = run_on_ranks(2, rank_main)
    assert [type(result) for result in results] == [PeerError, RuntimeError]


def test_work_is_done_although_another_rank_ends_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint is to be whole."""
    monkeypatch.setattr(messages, "_BEAT_SECONDS", 0.01)
    done, broken = threading.Event(), threading.Event()
    world = World(2)
    meet = world.meet

    def meet_and_tell() -> None:
        try:
            meet()
        finally:
            broken.set()

    def work() -> None:
        world.leave()
        assert broken.wait(DEADLINE_S)
        done.set()

    monkeypatch.setattr(world, "meet", meet_and_tell)

    with pytest.raises(PeerError):
        do_while_others_wait(ThreadCommunicator(world, 0), work, "test", 60.0)
    assert done.is_set()


HANGS = """
import time
from support.ranks import run_on_ranks
from hvdtrain.comm.messages import do_while_others_wait
run_on_ranks(2, lambda comm: do_while_others_wait(comm, lambda: time.sleep(60 * comm.topology.rank), "index", 1.0))
"""


def test_work_that_does_not_end_ends_its_rank(forker: Forker, tmp_path: Path) -> None:
    done = forker.run_python(["-c", HANGS], tmp_path)
    assert done.code == 1
    assert "rank 1 on " in done.stderr
    assert "index has not ended within 1 s." in done.stderr
    assert "Current thread" in done.stderr
