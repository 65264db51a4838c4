"""Where the time went: on each rank, and of all starts together; and who keeps the others waiting."""

from collections.abc import Iterator, Sequence
from typing import Final

from hvdtrain.history.rank_times import RankTimes, SlowRank, is_work, waits_for_others
from hvdtrain.report import wording
from hvdtrain.report.axes import side_by_side
from hvdtrain.report.bar_chart import Bar, bar_chart
from hvdtrain.report.markup import Markup, bullets, details, join, table, tag
from hvdtrain.report.palette import MOST
from hvdtrain.report.record import RunRecord
from hvdtrain.report.sections.curves import speed_chart

_MOST_BARS: Final = 16
_MOST_ROWS: Final = 256

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
    ranks = run.metrics.ranks
    figures = [figure for figure in (speed_chart([run]), rank_chart(ranks)) if figure is not None]
    return join(
        bullets(sentences(run), class_="findings"),
        side_by_side(*figures) if figures else tag("p", "No line of metrics.jsonl has times."),
        _whole(run),
    )


def sentences(run: RunRecord) -> Iterator[str]:
    """Who is slow, as far as it can be told."""
    ranks = run.metrics.ranks
    if len(ranks.sums) < 2:
        return
    slow = ranks.slow()
    for each in slow[:4]:
        yield _slow(each)
    if len(slow) > 4:
        yield f"{wording.plural(len(slow) - 4, 'more rank')} are slow."
    if not slow and ranks.can_tell:
        yield "No rank's own work takes longer than that of the others by more than chance does."
    if not ranks.can_tell:
        yield "There are too few lines of metrics to tell whether a rank is slow."


def _slow(slow: SlowRank) -> str:
    percent, times = f"{wording.share(slow.excess)} longer than", f"{slow.excess + 1:.0f} times as long as"
    longer = percent if slow.excess < 3 else times
    return (
        f"Rank {slow.rank} is slow: its own work takes {longer} that of the others, mostly in “{slow.part}”. "
        "The others wait for it in each update."
    )


def rank_chart(ranks: RankTimes) -> Markup | None:
    """Bars of seconds of each rank, and a table; None where no line has times."""
    totals = [total for total in ranks.sums if total]
    if not totals:
        return None
    parts = _ordered(ranks.parts)
    shown = sorted(sorted(range(len(ranks.sums)), key=lambda rank: -_own(ranks.sums[rank]))[:_MOST_BARS])
    drawn, merged = parts[:MOST], parts[MOST:]
    bars = []
    for rank in shown:
        lengths = {part: ranks.sums[rank].get(part, 0.0) for part in drawn}
        lengths[drawn[-1]] += sum(ranks.sums[rank].get(part, 0.0) for part in merged)
        bars.append(Bar(f"rank {rank}", lengths))
    label = "Seconds of each rank by part. " + " ".join(_told(rank, ranks.sums[rank], parts) for rank in shown)
    every = len(ranks.sums)
    few = f"The {len(shown)} of {every} ranks with the most work of their own." if every > len(shown) else None
    rows = [_row(rank, total, parts) for rank, total in enumerate(ranks.sums[:_MOST_ROWS])]
    numbers = details("Numbers", table("Seconds of each rank by part", ("rank", *parts, "all"), rows, visible=True))
    note = join(tag("p", few, class_="note") if few else None, numbers)
    return bar_chart("Time of each rank", label, bars, drawn, note)


def _ordered(parts: Sequence[str]) -> list[str]:
    """Own work first, then waiting for others, then the rest."""
    return sorted(parts, key=lambda part: (not is_work(part), not waits_for_others(part)))


def _own(total: dict[str, float]) -> float:
    return sum(value for part, value in total.items() if is_work(part))


def _told(rank: int, total: dict[str, float], parts: Sequence[str]) -> str:
    return f"Rank {rank}: " + ", ".join(f"{part} {wording.seconds(total.get(part, 0.0))}" for part in parts) + "."


def _row(rank: int, total: dict[str, float], parts: Sequence[str]) -> list[str]:
    whole = sum(total.values())
    cells = [f"{total.get(p, 0.0):,.2f} ({wording.share(total.get(p, 0.0) / whole if whole else 0.0)})" for p in parts]
    return [f"{rank}", *cells, f"{whole:,.2f}"]


def _whole(run: RunRecord) -> Markup | None:
    """The time of all starts together, by rank 0's clock."""
    seconds = run.metrics.goodput.result()["seconds"]
    total = seconds["total"]
    if total <= 0:
        return None
    rest = max(0.0, total - sum(seconds[name] for name, _ in _PARTS_OF_TIME))
    parts = [*((told, seconds[name]) for name, told in _PARTS_OF_TIME), ("all the rest", rest), ("together", total)]
    rows = [(told, wording.seconds(value), wording.share(value / total)) for told, value in parts]
    title = "Time of all starts together, by the clock of rank 0"
    return details(title, table(title, ("part", "time", "share"), rows))
