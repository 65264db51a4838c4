"""In which order the stages of a pipeline run the forward and backward passes of their micro batches.

A model is cut into S stages, one after the other, and each update's batch into M micro batches. While a stage works on
one micro batch, the next stage works on the one before it. Every stage is idle at the begin and at the end of an
update, its bubble: the share (S−1)/(M+S−1) of the time if all passes take equally long (Huang et al. 2019, "GPipe",
arXiv:1811.06965, section 2.3).
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

ScheduleName = Literal["1f1b", "gpipe"]


class Pass(NamedTuple):
    """What a stage does with one micro batch."""

    is_forward: bool
    micro_batch: int  # its number in the update, from 0


Schedule = Callable[[int, int, int], list[Pass]]
"""(stage, stages, micro batches) → the passes of that stage in their order."""


def gpipe(stage: int, stages: int, micro_batches: int) -> list[Pass]:  # noqa: ARG001
    """All forward passes, then all backward passes. A stage keeps the activations of all micro batches."""
    return [Pass(is_forward, number) for is_forward in (True, False) for number in range(micro_batches)]


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> list[Pass]:
    """A backward pass as early as possible, then one forward and one backward pass in turn.

    The same bubble as `gpipe`, but a stage keeps the activations of S − stage micro batches at most (Narayanan et al.
    2019, "PipeDream", and 2021, arXiv:2104.04473, section 2.2, with a flush after each update).
    """
    ahead = min(stages - stage - 1, micro_batches)
    passes = [Pass(True, number) for number in range(ahead)]
    for number in range(ahead, micro_batches):
        passes += [Pass(True, number), Pass(False, number - ahead)]
    return passes + [Pass(False, number) for number in range(micro_batches - ahead, micro_batches)]


SCHEDULES: Final[Mapping[str, Schedule]] = MappingProxyType({"1f1b": one_forward_one_backward, "gpipe": gpipe})


def slots(schedule: Schedule, stages: int, micro_batches: int) -> Iterator[list[tuple[int, Pass]]]:
    """(stage, pass) of all stages that are not idle in each slot, if every pass takes one: how one process runs them.

    Raises `ValueError`: the stages wait for each other forever.
    """
    left = [schedule(stage, stages, micro_batches)[::-1] for stage in range(stages)]
    done: set[tuple[int, Pass]] = set()
    while any(left):
        slot = [
            (stage, rest[-1]) for stage, rest in enumerate(left) if rest and _can_begin(stage, rest[-1], stages, done)
        ]
        if not slot:
            raise ValueError(f"no stage can go on after {len(done)} passes")
        yield slot
        for stage, _ in slot:
            left[stage].pop()
        done.update(slot)


def _can_begin(stage: int, stage_pass: Pass, stages: int, done: set[tuple[int, Pass]]) -> bool:
    if stage_pass.is_forward:
        return stage == 0 or (stage - 1, stage_pass) in done
    return (stage, Pass(True, stage_pass.micro_batch)) in done and (
        stage == stages - 1 or (stage + 1, stage_pass) in done
    )


def micro_batches_in_flight(schedule: ScheduleName, stages: int, micro_batches: int, stage: int) -> int:
    """Of how many a stage keeps the activations at the same time."""
    return micro_batches if schedule == "gpipe" else min(micro_batches, stages - stage)


def usual_micro_batches(stages: int, records: int) -> int:
    """How many micro batches are made where nobody says it: four for each stage, after which the bubble is below a
    fifth (the paper's own rule), but none without a record.

    Args: `records`: that a replica of the model has in each full step.
    """
    return max(1, min(4 * stages, records))
