"""Who has kept the others waiting, as the run has found it."""

from collections.abc import Iterator, Sequence

from hvdtrain.report import wording
from hvdtrain.report.record import RunRecord
from hvdtrain.slowness.straggler import Straggler

_MOST = 8  # sentences


def sentences(run: RunRecord) -> Iterator[str]:
    """One for each rank or link that was slow; or that none was, where the run has looked."""
    found = stragglers(run)
    for each in found[:_MOST]:
        updates = f"{wording.count(each.since_step)} to {wording.count(each.until_step)}"
        yield f"Updates {updates}: {each.sentence}"
    if len(found) > _MOST:
        yield f"{wording.plural(len(found) - _MOST, 'more straggler')} were found."
    if not found and isinstance(run.result.get("stragglers"), list) and len(run.metrics.ranks.sums) > 1:
        yield "No rank and no link has kept the others waiting for longer than chance explains."


def stragglers(run: RunRecord) -> Sequence[Straggler]:
    """As the run told them while it was running, and else as its result has them; what is no such thing is left out."""
    told = run.result.get("stragglers")
    lines = run.metrics.stragglers or (told if isinstance(told, list) else [])
    found = (Straggler.from_json(line) for line in lines if isinstance(line, dict))
    return [each for each in found if each is not None]
