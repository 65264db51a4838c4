"""Restarts and what they cost, stops, failures, stalls."""

from collections.abc import Iterator, Sequence

from hvdtrain.history.run_events import RunEvent
from hvdtrain.report import wording
from hvdtrain.report.markup import Markup, details, join, table, tag
from hvdtrain.report.record import RunRecord


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
        (_stall(start, text) for start, text in run.stalls.items()),
    )


def sentences(run: RunRecord) -> Iterator[str]:
    """What restarts have cost, and whether training has stood still."""
    goodput = run.metrics.goodput.result()
    restarts, seconds = goodput["restarts"], goodput["seconds"]
    if restarts:
        down = wording.seconds(sum(restart["seconds"] for restart in restarts))
        yield f"The run was interrupted {_times(len(restarts))}; until training went on, that took {down}."
        again, lost = wording.plural(goodput["lost_steps"], "update"), wording.seconds(seconds["lost"])
        yield f"{again} had to be trained again, which had taken {lost}."
    elif run.metrics.lines:
        yield from _without_restarts([each.kind for each in run.metrics.events])
    if seconds["total"] > 0:
        yield f"{wording.share(goodput['share'])} of all time trained the weights that are there."
    if run.stalls:
        yield f"Training stood still in {wording.plural(len(run.stalls), 'start')}; what the watchdog found is below."


def _without_restarts(kinds: Sequence[str]) -> Iterator[str]:
    if "failure" not in kinds:
        stops = kinds.count("stop")
        yield f"The run was stopped {_times(stops)}, and lost nothing by it." if stops else "It was never interrupted."


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{wording.count(number)} times")


def _row(event: RunEvent) -> tuple[str, ...]:
    kind, text = event.kind, event.text
    if kind == "resume":
        kind = "continued" if event.after_end else "restart"
        text = text or ("" if event.after_end else "the start before ended without a word, as a killed one does")
    return kind, wording.count(event.step), wording.moment(event.at), text


def _stall(start: str, text: str) -> Markup:
    return details(f"Standing still, start {start}", tag("p", text, class_="pre"))
