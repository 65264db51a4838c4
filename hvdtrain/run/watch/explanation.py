"""What the reports of all ranks together say: who waits, for whom, and what that one does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_NAMED: Final = 8  # ranks in a sentence
_SAME: Final = "All ranks wait in the same collective: look at the network between them."
_DIFFERENT: Final = (
    "They wait in different collectives, so none of them can end: look for code that runs one on some ranks only."
)


@dataclass(frozen=True, slots=True)
class Report:
    """What one rank does.

    Attributes:
        phase, step: as `Activity`.
        seconds: how long it has been doing this.
        waits_in: the collective that it waits in; None if it waits for no rank.
        reads: what is being read, in the phases of data.
        computes: whether its main thread uses the CPU.
        last_collective: in which it waited before; "" if it has waited in none yet.
        works: whether it does something alone, for which the others wait and which has a limit of its own.
    """

    rank: int
    host: str
    phase: str
    step: int
    seconds: float
    waits_in: str | None
    reads: str = ""
    computes: bool = False
    last_collective: str = ""
    works: bool = False


def explain(reports: Mapping[int, Report], size: int) -> str:
    """One sentence for each group of ranks, those that keep the others waiting first.

    Args:
        reports: by rank. A rank without one is frozen, or gone.
        size: how many ranks there are.
    """
    silent = [rank for rank in range(size) if rank not in reports]
    busy = [report for _, report in sorted(reports.items()) if report.waits_in is None]
    waiting = [report for _, report in sorted(reports.items()) if report.waits_in is not None]
    sentences = [_silent(silent)] if silent else []
    sentences += [_busy(report) for report in busy[:_NAMED]]
    if len(busy) > _NAMED:
        sentences.append(f"{len(busy) - _NAMED} more ranks do something else than wait, too.")
    collectives = list(dict.fromkeys(report.waits_in for report in waiting))
    sentences += [_waiting([r for r in waiting if r.waits_in == name], not (silent or busy)) for name in collectives]
    if not silent and not busy:
        sentences.append(_SAME if len(collectives) == 1 else _DIFFERENT)
    return " ".join(sentences)


def _silent(ranks: Sequence[int]) -> str:
    has = "has" if len(ranks) == 1 else "have"
    is_frozen = "it is frozen or gone" if len(ranks) == 1 else "they are frozen or gone"
    return f"{_ranks(ranks)} {has} reported nothing: {is_frozen}, or the run folder is not the same there."


def _busy(report: Report) -> str:
    who, since = f"rank {report.rank} on {report.host}", f"for {report.seconds:.0f} s"
    doing = {
        "start": f"has been starting {since}",
        "data": f"has been in data loading for step {report.step + 1} {since}",
        "validation data": f"has been in data loading for validation after step {report.step} {since}",
        "step": f"has been in training step {report.step + 1} {since}",
        "validation step": f"has been in validation after step {report.step} {since}",
        "checkpoint": f"has been saving the checkpoint of step {report.step} {since}",
        "end": f"has been ending the run after step {report.step} {since}",
    }[report.phase]
    reads = f", {report.reads}" if report.reads else ""
    computes = "" if report.phase not in ("step", "validation step") else _computes(report.computes)
    last = f" The last collective that it entered is {report.last_collective}." if report.last_collective else ""
    return f"{who} {doing}{reads}{computes}.{last}".replace("rank", "Rank", 1)


def _computes(computes: bool) -> str:
    return ", and computes" if computes else ", and uses no CPU: it is blocked"


def _waiting(reports: Sequence[Report], alone: bool) -> str:
    ranks = [report.rank for report in reports]
    longest, step = max(report.seconds for report in reports), max(report.step for report in reports)
    verb = "has" if len(ranks) == 1 else "have"
    too = "" if alone else ", for the others"
    collective = reports[0].waits_in or "a collective"
    return f"{_ranks(ranks)} {verb} waited {longest:.0f} s in {collective} of step {step + 1}{too}."


def _ranks(ranks: Sequence[int]) -> str:
    shown = [str(rank) for rank in ranks[:_NAMED]]
    if len(ranks) > _NAMED:
        shown.append(f"{len(ranks) - _NAMED} more")
    joined = " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
    return f"Rank {joined}" if len(ranks) == 1 else f"Ranks {joined}"
