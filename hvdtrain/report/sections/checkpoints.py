"""The checkpoints that are there, and what all of them have cost."""

from hvdtrain.checkpoints.inspection import Entry
from hvdtrain.report import wording
from hvdtrain.report.markup import Markup, join, table, tag
from hvdtrain.report.record import RunRecord

_MOST = 20


def section(run: RunRecord) -> Markup:
    """Of one run."""
    checkpoints = run.checkpoints
    older = len(checkpoints) - _MOST
    return join(
        tag("p", sentence(run)),
        tag("p", f"{wording.plural(older, 'older one')} not shown.") if older > 0 else None,
        table(
            "Checkpoints",
            ("checkpoint", "update", "workers", "size", "written", "note"),
            map(_row, checkpoints[-_MOST:]),
        )
        if checkpoints
        else None,
    )


def sentence(run: RunRecord) -> str:
    """What all checkpoints of the run have cost."""
    totals = run.metrics.checkpoints
    there = f"{wording.plural(len(run.checkpoints), 'checkpoint')} {'is' if len(run.checkpoints) == 1 else 'are'} there"
    if not totals.written:
        return f"{there}; metrics.jsonl has none that was written."
    waited, longest = wording.seconds(totals.seconds), wording.seconds(totals.longest)
    text = f"{there}, of {wording.count(totals.written)} that were written. "
    text += f"Training waited {waited} for them, {longest} at most for one."
    if totals.failed:
        text += f" {wording.plural(totals.failed, 'checkpoint')} could not be written."
    if totals.skipped:
        text += f" {wording.plural(totals.skipped, 'checkpoint')} were left out, as an earlier one was being written."
    return text


def _row(entry: Entry) -> tuple[str, ...]:
    return (
        entry.path.name,
        wording.count(entry.step),
        wording.count(entry.world_size),
        wording.size(entry.size),
        wording.moment(entry.written),
        entry.problem or ", ".join(entry.names),
    )
