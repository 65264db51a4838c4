"""How one start of a job ended: who is to blame, with which exit code, and what to say."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from launch.supervisor.member import Member

USAGE, RESUMABLE = 2, 75

SHOWN_LINES = 20

_SHOWN_CHARACTERS = 300
_STACKS = ("Traceback (most recent call last)", "Fatal Python error")
_VICTIM = ("Another rank has ended or stalled", "HorovodInternalError", "Horovod has been shut down")
"""What a rank says that only stopped because another did: `hvdtrain.comm.failure`, Horovod itself."""


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


def judge(members: Sequence[Member], stopped_by: signal.Signals | None) -> Outcome:
    """The outcome once every worker has ended.

    Args:
        members: all of them.
        stopped_by: the signal that was forwarded to them, if one was.
    """
    if stopped_by is not None:
        return _after_signal(members, stopped_by)
    failed = sorted((m for m in members if m.end and m.end.failed), key=lambda m: m.order)
    if not failed:
        return Outcome(0)
    culprit = next((member for member in failed if not _is_victim(member)), failed[0])
    code = culprit.code
    if code == USAGE:
        speaker = next((member for member in failed if member.rank == 0 and member.code == USAGE), culprit)
        return Outcome(USAGE, speaker.rank)
    if code == RESUMABLE:
        return Outcome(RESUMABLE, culprit.rank)  # no failure, and rank 0 has said where to go on
    message = _report(culprit, len(members))
    if code in (130, 143):
        return Outcome(code, culprit.rank, message)
    return Outcome(code if code > 0 else 1, culprit.rank, message, may_restart=True)


def _after_signal(members: Sequence[Member], stopped_by: signal.Signals) -> Outcome:
    codes = {member.code for member in members}
    if codes == {0}:
        return Outcome(0)
    if RESUMABLE in codes and codes <= {RESUMABLE, 0}:
        return Outcome(RESUMABLE)
    killed = [member.rank for member in members if member.end and member.end.by_us]
    late = f"; {_ranks(killed)} did not leave in time and had to be killed" if killed else ""
    return Outcome(128 + stopped_by, message=f"hvdtrain launch: stopped by {stopped_by.name}{late}.")


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _is_victim(member: Member) -> bool:
    return member.code != USAGE and any(sign in line for line in member.tail.text() for sign in _VICTIM)


def _report(member: Member, size: int) -> str:
    how = how_it_ended(member.code)
    if member.end and member.end.lost:
        how = f"was lost: {member.end.lost}"
    elif member.end and member.end.out_of_memory and member.code == -signal.SIGKILL:
        how += "; out of memory? The kernel has killed a process for it meanwhile"
    return f"hvdtrain launch: rank {member.rank} of {size}{member.place} {how}. {quoted(member)}"


def quoted(member: Member) -> str:
    """The worker's last lines, as they end a message."""
    lines = last_words(member.tail.text())
    if not lines:
        return "It wrote nothing."
    return "\n".join(["Its last lines:", *(f"  [{member.rank}] {line[:_SHOWN_CHARACTERS]}" for line in lines)])


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
