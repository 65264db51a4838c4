"""Where the time went: on each rank, and of all starts together; and who keeps the others waiting."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from hvdtrain.history.ranks import RankTimes, disjoint, work_seconds
from hvdtrain.history.reading import mapping, number
from hvdtrain.measured import PARTS
from hvdtrain.report import wording
from hvdtrain.report.charts import bar_chart
from hvdtrain.report.drawing import side_by_side
from hvdtrain.report.markup import Markup, bullets, details, join, table, tag
from hvdtrain.report.record import RunRecord
from hvdtrain.report.sections.curves import speed_chart
from hvdtrain.report.sections.summarized_time import SERIES, name_of, summarized_steps, summary_chart
from hvdtrain.slowness.causes import Straggler

_MOST_BARS: Final = 16
_MOST_ROWS: Final = 256
_MOST_STRAGGLERS: Final = 8  # sentences
_FEW: Final = 3  # ranks, each of which is a column of a table, and not a row

_PARTS_OF_TIME: Final = (
    ("useful", "training that is in the weights"),
    ("lost", "training that was lost and done again"),
    ("start", "starts: imports, data, model"),
    ("recovery", "from an interruption to the next start"),
    ("checkpoint", "waiting for checkpoints"),
    ("validation", "validation"),
)


def section(run: RunRecord) -> Markup:
    """Of one run."""
    figures = [
        rank_chart(run.metrics.ranks),
        summary_chart(run.metrics.summaries),
        speed_chart([run]),
        _whole(run),
    ]
    drawn = [figure for figure in figures if figure is not None]
    return join(
        bullets(sentences(run), class_="findings"),
        side_by_side(*drawn) if drawn else tag("p", "No line of metrics.jsonl has times."),
        _steps(run),
    )


def rank_chart(ranks: RankTimes) -> Markup | None:
    """Bars of seconds of each rank, and a table; None where no line has times."""
    sums = ranks.sums  # which each look makes anew
    every = [disjoint(total) for total in sums]
    parts = [part for part in _order(every) if any(total.get(part) for total in every)]
    if not parts:
        return None
    shown = sorted(sorted(range(len(every)), key=lambda rank: -work_seconds(sums[rank]))[:_MOST_BARS])
    bars = {f"rank {rank}": {name_of(part): value for part, value in every[rank].items()} for rank in shown}
    label = "Seconds of each rank by part. " + " ".join(_sentence(rank, every[rank], parts) for rank in shown)
    spent = {part for total in sums for part, seconds in total.items() if seconds}
    beside = [part for part in ranks.parts if part in spent and part not in (*parts, "compute")]
    is_turned = len(every) <= _FEW
    names = [
        "part" if is_turned else "rank",
        *(name_of(part) for part in parts),
        "all",
        *(name_of(part) for part in beside),
    ]
    numbers = [_row(rank, every[rank], sums[rank], parts, beside) for rank in range(min(len(every), _MOST_ROWS))]
    columns, *rows = zip(*[names, *numbers], strict=True) if is_turned else [names, *numbers]
    few = f"The {len(shown)} of {len(every)} ranks with the most work of their own."
    note = tag("p", few, class_="note") if len(every) > len(shown) else None
    shown_numbers = details("Numbers", table("Seconds of each rank by part", columns, rows, visible=True))
    series = {name_of(part): SERIES[part] for part in parts}
    return bar_chart("Time of each rank", label, bars, series, join(note, shown_numbers))


def _order(every: Sequence[Mapping[str, float]]) -> list[str]:
    """Own work first, then what waits for others: as `disjoint` has it."""
    longest = max(every, key=len, default={})
    return list(dict.fromkeys([*longest, *(part for total in every for part in total)]))


def _sentence(rank: int, total: Mapping[str, float], parts: Sequence[str]) -> str:
    parts_text = ", ".join(f"{name_of(part)} {wording.seconds(total.get(part, 0.0))}" for part in parts)
    return f"Rank {rank}: {parts_text}."


def _row(
    rank: int, total: Mapping[str, float], sums: Mapping[str, float], parts: Sequence[str], beside: Sequence[str]
) -> list[str]:
    whole = sum(total.values())
    cells = [f"{total.get(p, 0.0):,.2f} ({wording.share(total.get(p, 0.0) / whole if whole else 0.0)})" for p in parts]
    return [f"rank {rank}", *cells, f"{whole:,.2f}", *(f"{sums.get(part, 0.0):,.2f}" for part in beside)]


def _steps(run: RunRecord) -> Markup | None:
    """How long single steps took, by quantiles, as the result has them."""
    step_seconds = mapping(run.result, "step_seconds")
    if "ranks" in step_seconds:
        return summarized_steps(mapping(step_seconds, "ranks"))
    rows = [
        [f"rank {rank}: {name_of(part)}", *(wording.seconds(number(times, q)) for q in ("p50", "p90", "p99", "max"))]
        for rank, parts in islice(step_seconds.items(), _MOST_BARS)
        if isinstance(parts, dict)
        for part, times in islice(parts.items(), len(PARTS))
        if isinstance(times, dict)
    ]
    if not rows:
        return None
    title = "Times of single steps"
    return details(title, table(title, ("rank and part", "median", "90 % within", "99 % within", "longest"), rows))


def _whole(run: RunRecord) -> Markup | None:
    """The time of all starts together, by the clock of rank 0."""
    seconds: dict[str, Any] = run.metrics.goodput.result()["seconds"]
    total = seconds["total"]
    if total <= 0:
        return None
    rest = max(0.0, total - sum(seconds[name] for name, _ in _PARTS_OF_TIME))
    parts = [*((told, seconds[name]) for name, told in _PARTS_OF_TIME), ("all the rest", rest), ("together", total)]
    rows = [(told, wording.seconds(value), wording.share(value / total)) for told, value in parts]
    title = "Time of all starts together"
    note = tag("p", "By the clock of rank 0.", class_="note")
    return tag("figure", tag("figcaption", title), table(title, ("part", "time", "share"), rows), note)


def sentences(run: RunRecord) -> Iterator[str]:
    """One for each rank or link that was slow; or that none was, where the run has looked."""
    lines = run.result.get("stragglers")
    at_the_end = _readable(lines if isinstance(lines, list) else [])
    known = {(each.rank, each.since_step) for each in at_the_end}
    earlier = [each for each in _readable(run.metrics.stragglers) if (each.rank, each.since_step) not in known]
    # An earlier one was told when it was found, so that nothing says for how long it was slow.
    slow = [f"From update {wording.count(each.since_step)} on: {each.sentence}" for each in earlier]
    for each in at_the_end:
        slow.append(f"Updates {wording.count(each.since_step)} to {wording.count(each.until_step)}: {each.sentence}")
    yield from slow[:_MOST_STRAGGLERS]
    if len(slow) > _MOST_STRAGGLERS:
        yield f"{wording.plural(len(slow) - _MOST_STRAGGLERS, 'more straggler')} were found."
    ranks = max(len(run.metrics.ranks.sums), run.metrics.summaries.ranks)
    if not slow and isinstance(lines, list) and ranks > 1:
        yield "No rank and no link has kept the others waiting for longer than chance explains."


def _readable(lines: Iterable[object]) -> list[Straggler]:
    """What is not such a thing is left out."""
    stragglers = (Straggler.from_json(line) for line in lines if isinstance(line, dict))
    return [each for each in stragglers if each is not None]
