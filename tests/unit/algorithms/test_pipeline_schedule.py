"""The passes of a pipeline: each once, in an order in which no stage waits for ever, with the bubble of the formula."""

from __future__ import annotations

from fractions import Fraction
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.algorithms.pipeline_schedule import (
    SCHEDULES,
    Pass,
    one_forward_one_backward,
    slots,
    usual_micro_batches,
)

NAMES = st.sampled_from(sorted(SCHEDULES))
STAGES, MICRO_BATCHES = st.integers(1, 8), st.integers(1, 24)


@given(name=NAMES, stages=STAGES, micro_batches=MICRO_BATCHES)
def test_each_pass_runs_once_after_what_it_needs(name: str, stages: int, micro_batches: int) -> None:
    done: set[tuple[int, Pass]] = set()
    for stage, one in chain.from_iterable(slots(SCHEDULES[name], stages, micro_batches)):
        needed = (stage - 1, one) if one.is_forward else (stage + 1, one)
        assert needed in done or needed[0] in (-1, stages)
        assert one.is_forward or (stage, Pass(True, one.micro_batch)) in done
        assert (stage, one) not in done
        done.add((stage, one))
    assert len(done) == 2 * stages * micro_batches


@given(name=NAMES, stages=STAGES, micro_batches=MICRO_BATCHES)
def test_the_bubble_is_that_of_the_formula(name: str, stages: int, micro_batches: int) -> None:
    table = list(slots(SCHEDULES[name], stages, micro_batches))
    idle = 1 - Fraction(sum(map(len, table)), stages * len(table))
    expected = Fraction(stages - 1, micro_batches + stages - 1)
    # The table lets no pass begin before its slot, so that 1F1B with few micro batches may wait a little longer.
    assert idle == expected or (name == "1f1b" and micro_batches < stages and idle >= expected)


@given(stages=STAGES, micro_batches=MICRO_BATCHES)
def test_1f1b_keeps_few_activations(stages: int, micro_batches: int) -> None:
    for stage in range(stages):
        kept = most = 0
        for one in one_forward_one_backward(stage, stages, micro_batches):
            kept += 1 if one.is_forward else -1
            most = max(most, kept)
        assert most == min(stages - stage, micro_batches)
        assert kept == 0


def test_the_table_of_three_stages_and_four_micro_batches() -> None:
    """As the figure in the paper shows it."""

    table = [dict(slot) for slot in slots(one_forward_one_backward, 3, 4)]

    def row(stage: int) -> str:
        passes = [slot.get(stage) for slot in table]
        return " ".join(f"{'F' if one.is_forward else 'B'}{one.micro_batch}" if one else "--" for one in passes)

    assert [row(stage) for stage in range(3)] == [
        "F0 F1 F2 -- -- B0 F3 B1 -- B2 -- B3",
        "-- F0 F1 -- B0 F2 B1 F3 B2 -- B3 --",
        "-- -- F0 B0 F1 B1 F2 B2 F3 B3 -- --",
    ]


def test_stages_that_wait_for_each_other_are_an_error() -> None:
    with pytest.raises(ValueError, match="no stage can go on"):
        list(slots(lambda *_: [Pass(False, 0), Pass(True, 0)], 2, 1))


def test_as_many_micro_batches_as_there_are_records() -> None:
    assert [usual_micro_batches(2, records) for records in (1, 5, 8, 100)] == [1, 5, 8, 8]
