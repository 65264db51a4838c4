"""Which workers form the next world. In place of a launcher with its processes: one that notes what it is told."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.errors import RESUMABLE
from hvdtrain.launch.job_spec import JobSpec
from hvdtrain.launch.processes.worker import WorkerExit
from hvdtrain.launch.supervisor import newcomers
from hvdtrain.launch.supervisor.elastic import Elastic
from hvdtrain.launch.supervisor.newcomers import Variables
from hvdtrain.launch.supervisor.worker_state import WorkerState
from hvdtrain.topology.launcher_variables import RESTART_CAUSE_VARIABLE
from hvdtrain.world_channel import THREADS_VARIABLE, WORLD_VARIABLE

KILLED = WorkerExit(-signal.SIGKILL)


@pytest.fixture(autouse=True, scope="module")
def _at_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(newcomers, "LEAST_BACKOFF_SECONDS", 0.0)
        yield


class Noted:
    """Notes what it is told; there is room for `room` workers."""

    safe_at = 0.0
    look_at = None

    def __init__(self, room: int) -> None:
        self.room = room
        self.homeless: set[int] = set()  # whose hosts are no longer named
        self.started: list[int] = []
        self.worlds: list[list[int]] = []
        self.told: dict[int, Mapping[str, Any]] = {}
        self.killed: list[int] = []
        self.said: list[str] = []
        self.server: Any = self
        self.abandoned: list[int] = []  # numbers of worlds

    def abandon(self) -> None:
        self.abandoned.append(len(self.worlds) + 1)

    def start(self, number: int) -> str:
        self.started.append(number)
        return ""

    def open_world(self, numbers: Sequence[int], restarts: int) -> list[Variables]:
        self.worlds.append(list(numbers))
        return [{"RESTARTS": str(restarts)} for _ in numbers]

    def places(self) -> int:
        return self.room

    def placed(self, numbers: Sequence[int]) -> list[int]:
        return [number for number in numbers if number not in self.homeless][: self.room]

    def tell(self, number: int, order: Mapping[str, Any]) -> None:
        self.told[number] = order

    def kill(self, number: int) -> None:
        self.killed.append(number)


def job(
    workers: int, least: int = 1, most: int = 0, restarts: int = 9, grace: float = 60.0, start: float = 60.0
) -> tuple[Elastic, Noted]:
    launcher = Noted(workers)
    asked = JobSpec(
        command=("train",),
        np=workers,
        min_workers=least,
        max_workers=most or workers,
        max_restarts=restarts,
        grace=grace,
        start_timeout=start,
        backoff=0.0,
    )
    states = [WorkerState(rank) for rank in range(workers)]
    return Elastic(asked, states, launcher, launcher.said.append), launcher


def end(elastic: Elastic, number: int, how: WorkerExit = KILLED, mendable: bool = True) -> bool:
    elastic.workers[number].end = how
    return elastic.goes_on_without(number, mendable)


def train(elastic: Elastic, launcher: Noted) -> None:
    """The newest world is complete, and does updates."""
    elastic.hear(0, {"trains": len(launcher.worlds) + 1})
    elastic.act(connected=True)


def test_the_others_form_the_next_world_and_a_new_worker_joins_it() -> None:
    elastic, launcher = job(3)
    assert end(elastic, 0)
    elastic.ready(2, 1)
    assert not elastic.act(connected=False), "rank 1 is not there yet"
    elastic.ready(1, 1)
    assert elastic.act(connected=False)
    assert launcher.worlds == [[1, 2]], "the order of ranks stays"
    assert [worker.rank for worker in elastic.workers[1:]] == [0, 1]
    variables = launcher.told[1]["variables"]
    assert (variables[WORLD_VARIABLE], variables["RESTARTS"]) == ("2", "1")
    assert "rank 0 of 3 was killed by SIGKILL" in variables[RESTART_CAUSE_VARIABLE]
    assert not elastic.act(connected=False)
    elastic.hear(0, {"trains": 1})
    elastic.act(connected=True)
    assert launcher.started == [], "first the others train on"
    train(elastic, launcher)
    assert launcher.started == [3]
    elastic.ready(3, 0)
    train(elastic, launcher)
    assert launcher.told[1] == launcher.told[2] == {"change": True}
    elastic.ready(1, 2)
    elastic.ready(2, 2)
    assert elastic.act(connected=True)
    assert launcher.worlds[1] == [1, 2, 3]
    assert launcher.told[3]["variables"][RESTART_CAUSE_VARIABLE] is None, "a joining worker is no restart"


def test_a_later_world_computes_with_the_threads_of_the_first_one() -> None:
    elastic, launcher = job(2, most=3)
    launcher.room = 3
    elastic.hear(0, {"trains": 1, "threads": "4"})
    elastic.hear(1, {"trains": 1, "threads": "4"})
    elastic.act(connected=True)
    (joining,) = launcher.started
    for number, world in ((joining, 0), (0, 1), (1, 1)):
        elastic.ready(number, world)
        elastic.act(connected=True)
    assert [launcher.told[number]["variables"][THREADS_VARIABLE] for number in (0, 1, joining)] == ["4"] * 3


def test_too_few_wait_for_a_new_worker() -> None:
    elastic, launcher = job(2, least=2)
    assert end(elastic, 1)
    elastic.ready(0, 1)
    assert not elastic.act(connected=False)
    assert launcher.started == [2]
    elastic.ready(2, 0)
    assert elastic.act(connected=False)
    assert launcher.worlds == [[0, 2]]


def test_a_new_worker_that_never_comes_ends_the_wait() -> None:
    elastic, launcher = job(2, least=2, restarts=2)
    assert end(elastic, 1)
    elastic.ready(0, 1)
    elastic.act(connected=False)
    for number in (2, 3, 4):
        assert not elastic.gave_up
        assert end(elastic, number), "the end of a worker that has not joined ends nothing"
        elastic.act(connected=False)
    assert (elastic.losses.restarts, launcher.started) == (1, [2, 3, 4])
    assert elastic.gave_up == "hvdtrain launch: 1 worker is left, and 2 are needed."
    assert launcher.told[0] == {"leave": 0}


def test_workers_that_lose_each_other_again_and_again_are_given_up() -> None:
    elastic, launcher = job(2, restarts=1)
    for world in (1, 2):
        for number in range(2):
            elastic.ready(number, world)
        assert elastic.act(connected=True) is (world == 1)
    assert "lost each other" in elastic.gave_up
    assert launcher.told[0] == launcher.told[1] == {"leave": 0}


def test_all_workers_of_a_host_are_one_loss() -> None:
    elastic, launcher = job(4, restarts=1)
    for number in (2, 3):
        assert end(elastic, number)
    for number in (0, 1):
        elastic.ready(number, 1)
    assert elastic.act(connected=False)
    assert (elastic.losses.restarts, elastic.losses.mended, launcher.worlds) == (1, 1, [[0, 1]])
    assert not end(elastic, 1), "the next loss is another one"


def test_a_loss_while_a_world_is_formed_is_mended_by_the_next_one() -> None:
    elastic, launcher = job(4)
    assert end(elastic, 0)
    for number in (1, 2, 3):
        elastic.ready(number, 1)
    assert elastic.act(connected=False)
    assert end(elastic, 2)
    assert launcher.abandoned == [1, 2], "nobody waits at the rendezvous of a world that will never be complete"
    assert launcher.told[1] == launcher.told[3] == {"over": 2}
    assert elastic.gathers
    for number in (3, 1):
        elastic.ready(number, 2)
    assert elastic.act(connected=False)
    assert launcher.worlds == [[1, 2, 3], [1, 3]]
    assert not elastic.gathers


def test_who_cannot_reach_the_others_ends_their_world() -> None:
    elastic, launcher = job(3)
    elastic.ready(1, 1)
    assert launcher.abandoned == [1]
    assert launcher.told[0] == launcher.told[2] == {"over": 1}
    for number in (2, 0):
        elastic.ready(number, 1)
    assert launcher.abandoned == [1]
    assert elastic.act(connected=False)
    assert launcher.worlds == [[0, 1, 2]]


def test_the_causes_of_losses_that_were_mended_are_told_after_a_restart_of_all() -> None:
    elastic, _ = job(3)
    assert end(elastic, 0)
    for number in (1, 2):
        elastic.ready(number, 1)
    assert elastic.act(connected=False)
    assert end(elastic, 2), "this one is being mended"
    assert elastic.losses.mended_causes == ("rank 0 of 3 was killed by SIGKILL.",)


def test_without_room_nobody_is_started() -> None:
    elastic, launcher = job(4, least=3)
    launcher.room = 2
    for number in (2, 3):
        assert end(elastic, number)
    for number in (0, 1):
        elastic.ready(number, 1)
    assert not elastic.act(connected=False)
    assert launcher.started == []
    assert elastic.gave_up == "hvdtrain launch: 2 workers are left, and 3 are needed."


def test_who_has_not_joined_when_training_ends_is_killed() -> None:
    elastic, launcher = job(2)
    assert end(elastic, 1)
    elastic.ready(0, 1)
    elastic.act(connected=False)
    train(elastic, launcher)
    assert not end(elastic, 0, WorkerExit(0))
    assert launcher.killed == launcher.started == [2]


def test_what_cannot_be_mended_ends_the_job() -> None:
    assert not end(job(1)[0], 0), "nobody is left"
    assert not end(job(2, restarts=0)[0], 0)
    assert not end(job(2)[0], 0, mendable=False), "lost while the first world was being formed"
    assert not end(job(2)[0], 0, WorkerExit(2)), "wrong usage"
    assert not end(job(2)[0], 0, WorkerExit(RESUMABLE))
    assert not end(job(2)[0], 0, WorkerExit(0))


def test_who_does_not_come_back_in_time_is_killed_and_gone_without() -> None:
    elastic, launcher = job(3, grace=0.0)
    assert end(elastic, 0)
    elastic.ready(1, 1)
    elastic.act(connected=False)
    assert launcher.killed == [2]
    assert end(elastic, 2, WorkerExit(-signal.SIGKILL, by_us=True))
    assert elastic.act(connected=False)
    assert launcher.worlds == [[1]]


def test_if_nobody_comes_back_the_start_has_failed() -> None:
    """Who was killed for that has not failed by itself."""
    elastic, launcher = job(2, grace=0.0)
    assert end(elastic, 0)
    elastic.act(connected=False)
    assert launcher.killed == [1]
    assert not end(elastic, 1, WorkerExit(-signal.SIGKILL, by_us=True))
    assert elastic.gave_up == "hvdtrain launch: rank 1 did not come back after a loss."


def test_workers_leave_and_come_with_the_room() -> None:
    elastic, launcher = job(4, least=2)
    launcher.room = 3
    train(elastic, launcher)
    assert all(launcher.told[number] == {"change": True} for number in range(4))
    for number in range(4):
        elastic.ready(number, 1)
    assert elastic.act(connected=True)
    assert launcher.worlds == [[0, 1, 2]]
    assert launcher.told[3] == {"leave": 0}
    assert end(elastic, 3, WorkerExit(0)), "it left because it was told to"
    launcher.room = 1
    train(elastic, launcher)
    for number in range(3):
        elastic.ready(number, 2)
    assert elastic.act(connected=True)
    assert launcher.worlds[1] == [0, 1], "not below the least"
    launcher.room = 9
    train(elastic, launcher)
    assert launcher.started == [4, 5], "not above the most"


def test_who_is_left_after_a_loss_saves_for_a_stop() -> None:
    """Fewer than the least are enough for that, and it is no restart."""
    elastic, launcher = job(3, least=2, restarts=1)
    elastic.stop()
    assert end(elastic, 0)
    assert end(elastic, 1)
    elastic.ready(2, 1)
    assert elastic.act(connected=True)
    assert (launcher.worlds, launcher.started) == ([[2]], [])
    assert (elastic.losses.restarts, elastic.losses.mended) == (0, 0)
    assert not end(elastic, 2, WorkerExit(RESUMABLE)), "it has saved"


def test_at_a_stop_while_workers_change_all_have_saved() -> None:
    elastic, launcher = job(2)
    launcher.room = 1
    train(elastic, launcher)
    elastic.ready(0, 1)
    elastic.stop()
    elastic.ready(1, 1)
    assert not elastic.act(connected=True)
    assert launcher.told[0] == launcher.told[1] == {"leave": RESUMABLE}
    assert not elastic.act(connected=True)


def test_at_a_stop_nobody_is_waited_for_who_has_not_joined() -> None:
    elastic, launcher = job(3)
    end(elastic, 0)
    for number in (1, 2):
        elastic.ready(number, 1)
    elastic.act(connected=False)
    train(elastic, launcher)
    elastic.stop()
    assert launcher.killed == launcher.started == [3]
    assert end(elastic, 3, WorkerExit(-signal.SIGTERM)), "the signal came to it, too"
    assert "SIGTERM" not in "".join(launcher.said)


def test_a_new_worker_that_hangs_is_ended_and_another_one_is_started() -> None:
    elastic, launcher = job(3, start=0.0)
    assert end(elastic, 0)
    for number in (1, 2):
        elastic.ready(number, 1)
    elastic.act(connected=False)
    train(elastic, launcher)
    assert launcher.started == [3]
    train(elastic, launcher)
    assert launcher.killed == [3]
    assert "a further worker (process 0) was not ready within 0 seconds, and is ended." in launcher.said[-1]
    assert launcher.started == [3, 4]
    assert end(elastic, 3, WorkerExit(-signal.SIGKILL, by_us=True))


def test_what_cannot_be_started_is_tried_again_later_and_others_join_meanwhile() -> None:
    elastic, launcher = job(3)
    elastic.job = replace(elastic.job, backoff=1e-3)
    elastic.__post_init__()
    for number in (0, 1):
        assert end(elastic, number)
    elastic.ready(2, 1)
    elastic.act(connected=False)
    train(elastic, launcher)
    assert launcher.started == [3, 4]
    assert end(elastic, 3, WorkerExit(2)), "which alone would be wrong usage"
    assert "The next one is started in 0.001 s." in launcher.said[-1]
    elastic.ready(4, 0)
    train(elastic, launcher)
    assert launcher.told[2] == {"change": True}


def test_a_worker_that_does_not_leave_is_killed_and_one_that_cannot_be_killed_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elastic, launcher = job(2, grace=0.0)
    launcher.room = 1
    train(elastic, launcher)
    for number in (0, 1):
        elastic.ready(number, 1)
    assert elastic.act(connected=True)
    assert elastic.departures.deadline is not None
    assert elastic.departures.overdue() == []
    assert launcher.killed == [1]
    assert elastic.departures.overdue() == []
    monkeypatch.setattr(newcomers, "KILLED_SECONDS", 0.0)
    assert elastic.departures.overdue() == [1]
    assert end(elastic, 1, WorkerExit(-signal.SIGKILL, by_us=True))
    assert elastic.departures.deadline is None


def test_on_gpus_nothing_is_mended_and_a_loss_is_counted_by_the_restart_alone() -> None:
    elastic, launcher = job(2)
    elastic.hear(0, {"fixed": True})
    assert not end(elastic, 1)
    assert (elastic.losses.mended, elastic.deadline) == (0, None)
    assert not elastic.act(connected=True)
    assert launcher.started == []


def test_a_loss_that_was_not_mended_is_counted_by_the_restart_alone() -> None:
    elastic, _ = job(2)
    assert end(elastic, 0)
    assert not end(elastic, 1)
    assert elastic.losses.mended == 0
    assert elastic.losses.cause.startswith("rank 0 of 2 was killed by SIGKILL"), "what came first"


def test_a_host_that_is_no_longer_named_keeps_its_worker_until_another_one_can_replace_it() -> None:
    elastic, launcher = job(2, least=2)
    launcher.homeless = {1}
    train(elastic, launcher)
    assert (launcher.started, launcher.told) == ([2], {}), "two are needed"
    elastic.ready(2, 0)
    train(elastic, launcher)
    for number in (0, 1):
        elastic.ready(number, 1)
    assert elastic.act(connected=True)
    assert launcher.worlds == [[0, 2]]
    assert launcher.told[1] == {"leave": 0}


def test_a_new_worker_of_a_host_that_is_no_longer_named_does_not_join() -> None:
    elastic, launcher = job(1, most=2)
    launcher.room = 2
    train(elastic, launcher)
    launcher.homeless = {1}
    launcher.room = 1
    elastic.ready(1, 0)
    train(elastic, launcher)
    assert launcher.killed == [1]
    assert launcher.told == {}


@given(st.data())
def test_every_world_has_living_workers_only_and_ranks_from_zero(data: st.DataObject) -> None:
    """For any order of deaths and returns."""
    elastic, launcher = job(data.draw(st.integers(1, 5)), restarts=30)
    alive, world = {*range(len(elastic.workers))}, 1
    for _ in range(data.draw(st.integers(0, 30))):
        formed = len(launcher.worlds)
        if data.draw(st.booleans()) and len(alive) > 1:
            victim = data.draw(st.sampled_from(sorted(alive)))
            alive.discard(victim)
            if not end(elastic, victim):
                break
        for number in sorted(alive):
            waits_for_first = number in launcher.started and not any(number in made for made in launcher.worlds)
            elastic.ready(number, 0 if waits_for_first else world)
        train(elastic, launcher)
        alive |= {number for number in launcher.started if elastic.workers[number].end is None}
        if len(launcher.worlds) > formed:
            world += 1
            made = launcher.worlds[-1]
            assert set(made) <= alive
            assert len(set(made)) == len(made)
            assert [elastic.workers[number].rank for number in made] == list(range(len(made)))


def test_restarts_of_earlier_starts_are_counted_by_who_made_them() -> None:
    asked = JobSpec(command=("train",), np=2, min_workers=1, max_restarts=9)
    elastic = Elastic(asked, [WorkerState(0), WorkerState(1)], Noted(2), lambda _line: None, earlier=3)
    assert end(elastic, 1)
    elastic.ready(0, 1)
    assert elastic.act(connected=False)
    assert (elastic.losses.restarts, elastic.losses.mended) == (4, 1)
