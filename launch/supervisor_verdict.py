"""How one start of a job ended: who is to blame, with which exit code, and what to say."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from launch.process import Ended, Tail

USAGE, RESUMABLE = 2, 75

SHOWN_LINES = 20

_SHOWN_CHARACTERS = 300
_STACKS = ("Traceback (most recent call last)", "Fatal Python error")
_VICTIM = ("Another rank has ended or stalled", "HorovodInternalError", "Horovod has been shut down")
"""What a rank says that only stopped because another did: `hvdtrain.comm.failure`, Horovod itself."""


class Finished(Protocol):
    """A worker that has ended."""

    rank: int
    tail: Tail
    ended: Ended | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """One start of a job.

    Attributes:
        code: exit code, as DESIGN's table has it: 0, 2, 75, 128 + signal, a worker's own, else 1.
        culprit: the rank whose failure ended the job, where there is one.
        message: what to say; empty where a worker has said it all.
        may_restart: whether trying again makes sense.
    """

    code: int
    culprit: int | None = None
    message: str = ""
    may_restart: bool = False


def judge(workers: Sequence[Finished], stopped_by: signal.Signals | None, ran_out_of_memory: bool) -> Outcome:
    """The outcome once every worker has ended.

    Args:
        workers: all of them.
        stopped_by: the signal that was forwarded to them, if one was.
        ran_out_of_memory: whether the kernel has killed processes for lack of memory meanwhile.
    """
    if stopped_by is not None:
        return _after_signal(workers, stopped_by)
    failed = sorted((w for w in workers if w.ended and w.ended.failed), key=lambda w: w.ended.order if w.ended else 0)
    if not failed:
        return Outcome(0)
    culprit = next((worker for worker in failed if not _is_victim(worker)), failed[0])
    code = culprit.ended.code if culprit.ended else 1
    if code == USAGE:
        speaker = next((worker for worker in failed if worker.rank == 0 and _code(worker) == USAGE), culprit)
        return Outcome(USAGE, speaker.rank)
    message = _report(culprit, len(workers), ran_out_of_memory and code == -signal.SIGKILL)
    if code in (RESUMABLE, 130, 143):
        return Outcome(code, culprit.rank, message)
    return Outcome(code if code > 0 else 1, culprit.rank, message, may_restart=True)


def _after_signal(workers: Sequence[Finished], stopped_by: signal.Signals) -> Outcome:
    codes = {_code(worker) for worker in workers}
    if codes == {0}:
        return Outcome(0)
    if RESUMABLE in codes and codes <= {RESUMABLE, 0}:
        return Outcome(RESUMABLE)
    killed = [worker.rank for worker in workers if worker.ended and worker.ended.by_us]
    late = f"; {_ranks(killed)} did not leave in time and had to be killed" if killed else ""
    return Outcome(128 + stopped_by, message=f"hvdtrain launch: stopped by {stopped_by.name}{late}.")


def _code(worker: Finished) -> int:
    return worker.ended.code if worker.ended else 1


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _is_victim(worker: Finished) -> bool:
    return _code(worker) != USAGE and any(sign in line for line in worker.tail.text() for sign in _VICTIM)


def _report(worker: Finished, size: int, ran_out_of_memory: bool) -> str:
    out_of_memory = "; out of memory? The kernel has killed a process for it meanwhile" if ran_out_of_memory else ""
    heading = f"hvdtrain launch: rank {worker.rank} of {size} {how_it_ended(_code(worker))}{out_of_memory}."
    return f"{heading} {quoted(worker)}"


def quoted(worker: Finished) -> str:
    """The worker's last lines, as they end a message."""
    lines = last_words(worker.tail.text())
    if not lines:
        return "It wrote nothing."
    return "\n".join(["Its last lines:", *(f"  [{worker.rank}] {line[:_SHOWN_CHARACTERS]}" for line in lines)])


def how_it_ended(code: int) -> str:
    """For people: "failed with exit code 3", "was killed by SIGKILL"."""
    if code >= 0:
        return f"failed with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def last_words(lines: Sequence[str]) -> list[str]:
    """From the line before the last traceback on; without one, the last SHOWN_LINES. Blank ones are left out."""
    begin = max((i for i, line in enumerate(lines) if any(stack in line for stack in _STACKS)), default=None)
    chosen = lines[-SHOWN_LINES:] if begin is None else lines[max(0, begin - 1) :]
    return [line for line in chosen if line.strip()]
