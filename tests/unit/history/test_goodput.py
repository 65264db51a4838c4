"""What a run's lines say of its restarts, and of the time that trained weights that count."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.history.goodput import goodput

Line = dict[str, Any]


def started(step: int, begun: float, time: float, cause: str = "") -> Line:
    return {"event": "resumed" if step else "started", "step": step, "begun": begun, "time": time, "cause": cause}


def trained(step: int, time: float, seconds: float = 1.0) -> Line:
    ranks = [{"data": 0.0, "compute": seconds / 2, "allreduce": 0.0, "checkpoint": 9.0}]
    ranks.append({"data": seconds / 4, "compute": seconds / 2, "allreduce": seconds / 4, "checkpoint": 9.0})
    return {"split": "train", "step": step, "time": time, "seconds": ranks}


def saved(step: int, time: float, seconds: float = 0.25) -> Line:
    return {"event": "checkpoint", "step": step, "time": time, "seconds": seconds}


def test_a_run_without_interruption() -> None:
    lines = [started(0, 100.0, 102.0), trained(1, 103.0), trained(2, 104.0), saved(2, 104.5)]
    lines += [{"split": "validation", "step": 2, "time": 105.0, "seconds": 0.5}]
    assert goodput(lines, 106.0) == {
        "share": pytest.approx(2 / 6, abs=1e-4),
        "restarts": [],
        "lost_steps": 0,
        "skipped_updates": 0,
        "seconds": {
            "total": 6.0,
            "start": 2.0,
            "useful": 2.0,
            "lost": 0.0,
            "checkpoint": 0.25,
            "validation": 0.5,
            "recovery": 0.0,
        },
    }


def test_skipped_updates_of_the_weights_that_are_there_are_counted() -> None:
    lines = [started(0, 0.0, 1.0), trained(1, 2.0) | {"skipped": 1}, saved(1, 2.0), trained(2, 3.0) | {"skipped": 1}]
    lines += [started(1, 9.0, 10.0), trained(2, 11.0), trained(3, 12.0) | {"skipped": 2}]
    assert goodput(lines, 13.0)["skipped_updates"] == 3


def test_what_was_trained_after_the_checkpoint_is_lost() -> None:
    lines = [started(0, 0.0, 1.0), *(trained(step, 1.0 + step) for step in range(1, 5)), saved(2, 3.0)]
    lines.sort(key=lambda line: line["time"])
    lines += [started(2, 8.0, 9.0, "rank 1 of 2 was killed by signal 9"), *(trained(s, 7.0 + s) for s in range(3, 6))]
    found = goodput(lines, 13.0)
    assert found["restarts"] == [
        {"step": 2, "lost_steps": 2, "seconds": 4.0, "cause": "rank 1 of 2 was killed by signal 9"}
    ]
    assert (found["lost_steps"], found["seconds"]["useful"], found["seconds"]["lost"]) == (2, 5.0, 2.0)
    assert (found["seconds"]["recovery"], found["seconds"]["start"], found["seconds"]["total"]) == (3.0, 2.0, 13.0)
    assert found["share"] == pytest.approx(5 / 13, abs=1e-4)


def test_a_run_that_ended_and_was_continued_was_not_interrupted() -> None:
    lines = [started(0, 0.0, 1.0), trained(1, 2.0), {"event": "ended", "step": 1, "time": 3.0}]
    lines += [started(1, 1000.0, 1001.0), trained(2, 1002.0)]
    found = goodput(lines, 1003.0)
    assert (found["restarts"], found["seconds"]["total"], found["seconds"]["useful"]) == ([], 6.0, 2.0)


def test_starts_that_never_trained_are_restarts_with_their_causes() -> None:
    """Of one launcher: two losses before the first update, one that was trained after, three in a row, a join."""
    first = started(0, 5.0, 6.0) | {"restarts": 2, "causes": ["a", "b"]}
    second = started(2, 10.0, 11.0, "c") | {"restarts": 3, "causes": ["a", "b", "c"]}
    third = started(2, 20.0, 21.0, "f") | {"restarts": 6, "causes": ["d", "e", "f"]}
    joined = started(4, 30.0, 31.0) | {"restarts": 6, "causes": ["d", "e", "f"]}
    lines = [first, trained(3, 8.0), second, trained(3, 13.0), third, trained(4, 24.0)]
    lines += [{"event": "ended", "step": 4, "time": 25.0}, joined]
    found = goodput(lines, 32.0)
    told = [(restart["cause"], restart["step"], restart["lost_steps"]) for restart in found["restarts"]]
    assert told == [("a", 0, 0), ("b", 0, 0), ("c", 2, 1), ("d", 2, 1), ("e", 2, 0), ("f", 2, 0)]
    assert [restart["seconds"] for restart in found["restarts"]] == [0.0, 0.0, 3.0, 8.0, 0.0, 0.0]


def test_another_launcher_counts_from_its_own_start() -> None:
    lines = [started(0, 0.0, 1.0) | {"restarts": 4, "causes": list("abcd")}, trained(1, 2.0)]
    found = goodput([*lines, started(1, 9.0, 10.0, "x") | {"restarts": 1}], 11.0)
    assert [restart["cause"] for restart in found["restarts"]] == ["a", "b", "c", "d", "x"]


def test_updates_that_were_not_logged_are_lost_where_somebody_knows_of_them() -> None:
    lines = [started(0, 0.0, 1.0), trained(10, 2.0), {"event": "failed", "step": 17, "time": 3.0}]
    assert goodput([*lines, started(10, 9.0, 10.0)], 11.0)["lost_steps"] == 7
    assert goodput([*lines, started(10, 9.0, 10.0) | {"reached": 18}], 11.0)["lost_steps"] == 8


def test_a_resume_may_undo_what_several_starts_have_trained() -> None:
    lines = [started(0, 0.0, 0.0), *(trained(step, float(step)) for step in range(1, 31))]
    lines += [started(20, 40.0, 40.0), started(10, 50.0, 50.0), *(trained(s, 50.0 + s) for s in range(11, 31))]
    found = goodput(lines, 90.0)
    assert (found["seconds"]["useful"], found["seconds"]["lost"]) == (30.0, 20.0)
    assert [restart["lost_steps"] for restart in found["restarts"]] == [10, 10]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6))
def test_useful_and_lost_time_are_all_that_was_trained(starts: list[tuple[int, int]]) -> None:
    """Each start resumes at one of the steps that were reached, and trains some."""
    lines, clock, reached, total = [], 0.0, 0, 0
    for back, steps in starts:
        step = max(0, reached - back)
        lines.append(started(step, clock, clock + 1))
        clock += 1
        for number in range(step + 1, step + steps + 1):
            clock += 1
            lines.append(trained(number, clock))
            total += 1
        reached = step + steps if steps else step
        clock += 1
    found = goodput(lines, clock)
    assert found["seconds"]["useful"] + found["seconds"]["lost"] == pytest.approx(total)
    assert 0 <= found["share"] <= 1


def ended(step: int, time: float, finished: bool = True) -> Line:
    return {"event": "ended", "step": step, "time": time, "finished": finished}


def test_a_start_that_finds_nothing_left_to_train_changes_nothing() -> None:
    lines = [started(0, 0.0, 1.0), trained(1, 2.0), trained(2, 3.0), ended(2, 4.0)]
    again = [
        started(2, 100.0, 103.0),
        {"split": "validation", "step": 2, "time": 104.0, "seconds": 0.5},
        ended(2, 104.5),
    ]
    assert goodput([*lines, *again]) == goodput(lines)
    longer = [started(2, 200.0, 201.0), trained(3, 202.0), ended(3, 203.0)]
    assert goodput([*lines, *again, *longer]) == goodput([*lines, *longer])


def test_a_clock_that_is_set_back_makes_no_share_above_all_of_it() -> None:
    lines = [started(0, 100.0, 101.0), *(trained(step, 90.0 + step) for step in range(1, 9)), ended(8, 99.0)]
    found = goodput(lines, 99.0)
    assert found["share"] <= 1.0
    assert found["seconds"]["total"] == found["seconds"]["start"] + found["seconds"]["useful"] == 9.0
