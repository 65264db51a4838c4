"""Who has kept the others waiting, as the run has found it."""

from collections.abc import Iterable, Iterator, Sequence

from hvdtrain.report import wording
from hvdtrain.report.record import RunRecord
from hvdtrain.slowness.straggler import Straggler

_MOST = 8  # sentences


def sentences(run: RunRecord) -> Iterator[str]:
    """One for each rank or link that was slow; or that none was, where the run has looked."""
    found = stragglers(run)
    for each in found[:_MOST]:
        yield f"{_updates(run, each)}: {each.sentence}"
    if len(found) > _MOST:
        yield f"{wording.plural(len(found) - _MOST, 'more straggler')} were found."
    if not found and isinstance(run.result.get("stragglers"), list) and len(run.metrics.ranks.sums) > 1:
        yield "No rank and no link has kept the others waiting for longer than chance explains."


def _updates(run: RunRecord, each: Straggler) -> str:
    since = wording.count(each.since_step)
    if each not in _at_the_end(run):  # told when it was found, so that nothing says for how long it was slow
        return f"From update {since} on"
    return f"Updates {since} to {wording.count(each.until_step)}"


def stragglers(run: RunRecord) -> Sequence[Straggler]:
    """As the run told them while it was running, those of its last start as its result has them."""
    at_the_end = _at_the_end(run)
    known = {(each.rank, each.since_step) for each in at_the_end}
    earlier = [each for each in _readable(run.metrics.stragglers) if (each.rank, each.since_step) not in known]
    return [*earlier, *at_the_end]


def _at_the_end(run: RunRecord) -> list[Straggler]:
    told = run.result.get("stragglers")
    return _readable(told if isinstance(told, list) else [])


def _readable(lines: Iterable[object]) -> list[Straggler]:
    """What is no such thing is left out."""
    found = (Straggler.from_json(line) for line in lines if isinstance(line, dict))
    return [each for each in found if each is not None]
