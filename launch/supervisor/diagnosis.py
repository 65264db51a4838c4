"""How one start of a job ended: who is to blame, with which exit code, and what to say."""

from __future__ import annotations

import re
import signal
from collections.abc import Container, Sequence
from dataclasses import dataclass

from hvdtrain.launch.supervisor.worker_state import WorkerState

USAGE, RESUMABLE = 2, 75

SHOWN_LINES = 20
GIST_LINES = 3
"""Of a rank whose lines stand above."""

_SHOWN_CHARACTERS = 300
_CRASH = "Fatal Python error"
_STACKS = ("Traceback (most recent call last)", _CRASH)
_MISSING = "Missing ranks:"
_MISSING_RANK = re.compile(r"(\d{1,6}): \[")
_VICTIM = ("Another rank has ended or stalled", "HorovodInternalError", "Horovod has been shut down")
"""What a rank says that only stopped because another did: `hvdtrain.comm.failure`, Horovod itself."""


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """One start of a job.

    Attributes:
        code: exit code, as DESIGN's table has it: 0, 2, 75, 128 + signal, a worker's own, else 1.
        root_cause_rank: the rank whose failure ended the job, where there is one.
        message: what to say; empty where a worker has said it all.
        may_restart: whether trying again makes sense.
    """

    code: int
    root_cause_rank: int | None = None
    message: str = ""
    may_restart: bool = False


def diagnose(
    workers: Sequence[WorkerState],
    stopped_by: signal.Signals | None,
    met: bool = False,
    held: Container[int] = (),
) -> JobOutcome:
    """The outcome once every worker has ended.

    Args:
        workers: all of them.
        stopped_by: the signal that was forwarded to them, if one was.
        met: whether all ranks were connected once: a wrong call shows before that.
        held: ranks whose lines were not shown yet, and are quoted in full.
    """
    if stopped_by is not None:
        return _after_signal(workers, stopped_by)
    failed = sorted((m for m in workers if m.end and m.end.failed), key=lambda m: m.order)
    if not failed:
        return JobOutcome(0)
    root_cause = next((member for member in failed if not _is_victim(member)), None)
    if root_cause is None:
        return _without_culprit(workers, failed, held)
    code = root_cause.code
    if code == USAGE and not met:
        speaker = next((member for member in failed if member.rank == 0 and member.code == USAGE), root_cause)
        return JobOutcome(USAGE, speaker.rank)
    if code == RESUMABLE:
        return JobOutcome(RESUMABLE, root_cause.rank)  # no failure, and rank 0 has said where to go on
    message = _report(root_cause, len(workers), root_cause.rank in held)
    if code in (USAGE, 130, 143):
        return JobOutcome(code, root_cause.rank, message)
    return JobOutcome(code if code > 0 else 1, root_cause.rank, message, may_restart=True)


def _without_culprit(workers: Sequence[WorkerState], failed: Sequence[WorkerState], held: Container[int]) -> JobOutcome:
    """All that failed say that another rank did: the one they wait for, one that left early, or none that is known."""
    first, size = failed[0], len(workers)
    stalled = sorted({rank for member in failed for rank in stalled_ranks(member.tail.text())} - {first.rank})
    early = [m.rank for m in workers if m.end and m.end.code == 0 and m.order < first.order]
    blamed = first.rank
    if stalled and stalled[-1] < size:
        blamed = stalled[0]
        why = f"{_ranks(stalled)} of {size} took no part in a collective operation for which others waited"
    elif early:
        blamed = early[0]
        why = f"{_ranks(early)} of {size} left with exit code 0 while others still needed {_them(early)}"
    else:
        why = "the ranks lost each other, and none of them says more"
    victims = _ranks([member.rank for member in failed])
    text = f"hvdtrain launch: {why}; {victims} stopped only because of that. Of rank {first.rank}: "
    code = first.code if first.code > 0 else 1
    return JobOutcome(code, blamed, text + quoted(first, first.rank in held), may_restart=True)


def stalled_ranks(lines: Sequence[str]) -> set[int]:
    """The ranks for which others wait, by the words of Horovod's stall_inspector.cc: "Missing ranks:", "1: [names]"."""
    found: set[int] = set()
    listing = False
    for line in lines:
        match = _MISSING_RANK.match(line)
        if match and listing:
            found.add(int(match[1]))
        else:
            listing = line.rstrip().endswith(_MISSING)
    return found


def _them(ranks: Sequence[int]) -> str:
    return "them" if len(ranks) > 1 else "it"


def _after_signal(workers: Sequence[WorkerState], stopped_by: signal.Signals) -> JobOutcome:
    codes = {member.code for member in workers}
    if codes == {0}:
        return JobOutcome(0)
    if RESUMABLE in codes and codes <= {RESUMABLE, 0}:
        return JobOutcome(RESUMABLE)
    killed = [member.rank for member in workers if member.end and member.end.by_us]
    late = f"; {_ranks(killed)} did not leave in time and had to be killed" if killed else ""
    return JobOutcome(128 + stopped_by, message=f"hvdtrain launch: stopped by {stopped_by.name}{late}.")


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _is_victim(member: WorkerState) -> bool:
    return member.code != USAGE and any(sign in line for line in member.tail.text() for sign in _VICTIM)


def _report(member: WorkerState, size: int, in_full: bool) -> str:
    how = how_it_ended(member.code)
    if member.end and member.end.lost:
        how = f"was lost: {member.end.lost}"
    elif member.end and member.end.out_of_memory and member.code == -signal.SIGKILL:
        how += "; out of memory? The kernel has killed a process for it meanwhile"
    return f"hvdtrain launch: rank {member.rank} of {size}{member.place} {how}. {quoted(member, in_full)}"


def quoted(member: WorkerState, in_full: bool) -> str:
    """The worker's last lines, as they end a message; of what was shown before, where it ended."""
    lines = last_words(member.tail.text())
    if not in_full:
        lines = _gist(lines)
    if not lines:
        return "It wrote nothing."
    return "\n".join(["Its last lines:", *(f"  [{member.rank}] {line[:_SHOWN_CHARACTERS]}" for line in lines)])


def _gist(lines: list[str]) -> list[str]:
    """A traceback tells what it was at its end, the interpreter's own report of a crash at its beginning."""
    crash = next((i for i, line in enumerate(lines) if _CRASH in line), None)
    return lines[-GIST_LINES:] if crash is None else lines[crash : crash + GIST_LINES]


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
