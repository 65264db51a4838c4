"""Who keeps the others waiting: as the run has found it, and what the sums of all its lines say."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from hvdtrain.history.json_values import mapping, number, text, whole
from hvdtrain.history.rank_times import SlowRank
from hvdtrain.report import wording
from hvdtrain.report.record import RunRecord

_MOST: Final = 8  # sentences of each kind


def sentences(run: RunRecord) -> Iterator[str]:
    """One for each rank or link that is slow; or that none is, where that can be told."""
    found, ranks = stragglers(run), run.metrics.ranks
    yield from map(_straggler, found[:_MOST])
    if len(found) > _MOST:
        yield f"{wording.plural(len(found) - _MOST, 'more straggler')} were found."
    named = {straggler.get("rank") for straggler in found}
    slow = [each for each in ranks.slow() if each.rank not in named]
    yield from map(_slow, slow[:_MOST])
    if len(slow) > _MOST:
        yield f"{wording.plural(len(slow) - _MOST, 'more rank')} are slow."
    if not found and not slow and len(ranks.sums) > 1:
        yield (
            "No rank's own work takes longer than that of the others by more than chance does."
            if ranks.can_tell
            else "There are too few lines of metrics to tell whether a rank is slow."
        )


def stragglers(run: RunRecord) -> Sequence[Mapping[str, Any]]:
    """As the run told them while it was running, and else as its result has them."""
    told = run.result.get("stragglers")
    of_result = [each for each in told if isinstance(each, dict)] if isinstance(told, list) else []
    return run.metrics.stragglers or of_result


def _straggler(found: Mapping[str, Any]) -> str:
    rank, host, cause = whole(found, "rank"), text(found, "host"), text(found, "cause") or "unknown"
    at = f" on {host}" if host else ""
    who = "The network between the hosts" if rank is None else f"Rank {rank}{at}"
    slower = number(found, "slower_by")
    is_slow = f"is slow by {wording.share(slower)}" if slower else "is slow"
    waited = wording.share(number(found, "share_of_time_others_waited"))
    steps = f"updates {wording.count(number(found, 'since_step'))} to {wording.count(number(found, 'until_step'))}"
    why = "the cause is not known" if cause == "unknown" else f"the cause: {cause}"
    counted = ", ".join(_facts(mapping(found, "facts")))
    counted = f" ({counted})" if counted else ""
    return f"{who} {is_slow}, and the others waited {waited} of their time for it ({steps}); {why}{counted}."


def _facts(facts: Mapping[str, Any]) -> Iterator[str]:
    for name in list(facts)[:_MOST]:
        if value := number(facts, name):
            yield f"{name.replace('_', ' ')} {wording.amount(value)}"


def _slow(slow: SlowRank) -> str:
    percent, times = f"{wording.share(slow.excess)} longer than", f"{slow.excess + 1:.0f} times as long as"
    longer = percent if slow.excess < 3 else times
    part = f", mostly in “{slow.part.replace('_', ' ')}”" if slow.part else ""
    return (
        f"Rank {slow.rank} is slow: its own work takes {longer} that of the others{part}. "
        "The others wait for it in each update."
    )
