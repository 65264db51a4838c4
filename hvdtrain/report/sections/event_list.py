"""Restarts and what they cost, stops, failures, stalls; checkpoints, and what all of them have cost."""

from collections.abc import Iterator

from hvdtrain.checkpoints.inspection import Entry
from hvdtrain.history.goodput import share_is_known
from hvdtrain.history.run_events import RunEvent
from hvdtrain.report import wording
from hvdtrain.report.markup import Markup, details, join, table, tag
from hvdtrain.report.record import RunRecord
from hvdtrain.units import in_decimal_bytes

_MOST = 20  # checkpoints


def section(run: RunRecord) -> Markup:
    """Of one run."""
    events = run.metrics.events
    rows: list[tuple[str, ...]] = [_row(each) for each in events]
    more = events.left_out
    columns = ["what", "after update", "when", "why"]
    if not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return join(
        (tag("p", text) for text in sentences(run)),
        tag("p", f"{wording.plural(more, 'event')} between these are left out.") if more else None,
        table("Starts, stops and failures", columns, rows, numbers=False) if rows else None,
        (details(f"Standing still, start {start}", tag("p", text, class_="pre")) for start, text in run.stalls.items()),
    )


def sentences(run: RunRecord) -> Iterator[str]:
    """What restarts have cost, and whether training has stood still."""
    goodput = run.metrics.goodput.result()
    restarts, seconds = goodput["restarts"], goodput["seconds"]
    kinds = [event.kind for event in run.metrics.events]
    if restarts:
        down = wording.seconds(sum(restart["seconds"] for restart in restarts))
        yield f"The run was interrupted {_times(len(restarts))}; until training went on, that took {down}."
        again, lost = wording.plural(goodput["lost_steps"], "update"), wording.seconds(seconds["lost"])
        yield f"{again} had to be trained again, which had taken {lost}."
    elif run.metrics.lines and "failure" not in kinds:
        stops = kinds.count("stop")
        yield f"The run was stopped {_times(stops)}, and lost nothing by it." if stops else "It was never interrupted."
    if share_is_known(goodput):
        yield f"{wording.share(goodput['share'])} of all time trained the weights that are there."
    if run.stalls:
        yield f"Training stood still in {wording.plural(len(run.stalls), 'start')}; what the watchdog found is below."


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{wording.count(number)} times")


def _row(event: RunEvent) -> tuple[str, ...]:
    kind, text = event.kind, event.text
    if kind == "resume" and event.after_end is None:
        kind = "begun from another run's checkpoint"
    elif kind == "resume":
        kind = "continued" if event.after_end else "restart"
        text = text or ("" if event.after_end else "the start before ended without a word, as a killed one does")
    return kind, wording.count(event.step), wording.moment(event.at), text


def checkpoints(run: RunRecord) -> Markup:
    """Those of one run that are there."""
    there = run.checkpoints
    older = len(there) - _MOST
    columns = ("checkpoint", "update", "workers", "size", "written", "note")
    return join(
        tag("p", _costs(run)),
        tag("p", f"{wording.plural(older, 'older one')} not shown.") if older > 0 else None,
        table("Checkpoints", columns, map(_checkpoint, there[-_MOST:])) if there else None,
    )


def _costs(run: RunRecord) -> str:
    """What all checkpoints of the run have cost."""
    totals = run.metrics.checkpoints
    there = f"{wording.plural(len(run.checkpoints), 'checkpoint')} {'is' if len(run.checkpoints) == 1 else 'are'} there"
    if not totals.written:
        return f"{there}; metrics.jsonl has none that was written."
    waited, longest = wording.seconds(totals.seconds), wording.seconds(totals.longest)
    text = f"{there}; this run has written {wording.count(totals.written)}. "
    text += f"Training waited {waited} for them, {longest} at most for one."
    if totals.failed:
        text += f" {wording.plural(totals.failed, 'checkpoint')} could not be written."
    if totals.skipped:
        text += f" {wording.plural(totals.skipped, 'checkpoint')} were left out, as an earlier one was being written."
    return text


def _checkpoint(entry: Entry) -> tuple[str, ...]:
    return (
        entry.path.name,
        wording.count(entry.step),
        wording.count(entry.world_size),
        in_decimal_bytes(entry.size),
        wording.moment(entry.written),
        entry.problem or ", ".join(entry.names),
    )
