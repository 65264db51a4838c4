"""The picture of a run that `hvdtrain top` draws: how far it is, and rows of ranks, first those that need a look."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from hvdtrain.cli.tables import STATE_STYLES
from hvdtrain.history.heartbeats import Heard, Heartbeat
from hvdtrain.history.metrics_end import MetricsEnd, measures
from hvdtrain.history.reading import number, whole
from hvdtrain.history.run_state import RunState
from hvdtrain.measured import METRICS
from hvdtrain.set_names import readable
from hvdtrain.units import in_bytes, in_measure, in_time

Mood = Literal["good", "waits", "bad", "over"]

_WORTH_TELLING: Final = 5.0  # seconds: shorter ones come and go with each step

_DOING: Final[Mapping[str, str]] = {
    "start": "starting",
    "data": "data",
    "step": "step",
    "validation data": "validation: data",
    "validation step": "validation",
    "checkpoint": "checkpoint",
    "end": "ending",
}

_LIVE: Final = {metric.live[1]: (metric.live[0], metric.kind) for metric in METRICS if metric.live is not None}
"""Head of a column → the key of a heartbeat, and what it counts."""

_SHOWN: Final[Mapping[str, Callable[[float], str]]] = {
    "number": "{:.4g}".format,
    "count": "{:,}".format,
    "bytes": in_bytes,
    "share": "{:.0%}".format,
}

COLUMNS: Final = ("step", "steps/s", *_LIVE, "last sign")
"""Of numbers, by their heads."""

GIVE_WAY: Final = (*reversed(_LIVE), "steps/s", "last sign", "step")
"""Columns that a narrow terminal does not show, the first one first."""

_HEADING_LINES: Final = 8  # above the ranks and below them, on a narrow terminal
_LEAST_ROWS: Final = 3
_BAR: Final = 20
_LEAST_STATE, _LEAST_HOST, _MOST_HOST, _GAP = 16, 6, 24, 2
_STYLES: Final[Mapping[Mood, str]] = {"good": "", "waits": "yellow", "bad": "bold red", "over": "dim"}


@dataclass(frozen=True)
class Row:
    """One rank."""

    rank: int
    host: str
    state: str  # what it does, for people
    mood: Mood  # how that is shown
    cells: Mapping[str, str] = field(default_factory=dict)  # what it says in `COLUMNS`, as far as it says something


@dataclass(frozen=True)
class Look:
    """What was seen of a run at one moment."""

    name: str  # of the run, for people
    state: RunState
    heard: Mapping[int, Heard]  # the heartbeats by rank
    end: MetricsEnd
    workers: int | None  # how many there are, as env.json tells; None where it does not
    unread: frozenset[int] = frozenset()  # ranks whose heartbeats are there and cannot be read
    best_metric: str = ""  # of --best-metric, if given


def picture(look: Look, lines: int | None, most_ranks: int | None = None) -> RenderableType:
    """The picture. Args: `lines`: of the terminal, which it fits into; None: it shows so many ranks at most."""
    told = next((heard.beat.size for heard in look.heard.values()), look.workers or 0)
    size = max(told, max(look.unread, default=-1) + 1)
    most = most_ranks or size if lines is None else max(_LEAST_ROWS, lines - _HEADING_LINES)
    shown, left = rows(look.heard, size, most, look.unread)
    parts: list[RenderableType] = [_heading(look, size), _progress(look), Text("")]
    if not look.heard and not look.unread:
        return Group(*parts, Text("No rank has written a heartbeat; a loop of your own writes none.", style="dim"))
    parts.append(_Table(shown))
    if left:
        parts.append(Text(f"… and {left:,} more ranks, which are further and not silent", style="dim"))
    return Group(*parts)


def _heading(look: Look, size: int) -> Text:
    beat = _first_of(look.heard)
    hosts = {heard.beat.host for heard in look.heard.values()}
    where = f" on {next(iter(hosts))}" if len(hosts) == 1 else f" on {len(hosts)} hosts" if hosts else ""
    who = f"{size:,} rank{'s' * (size != 1)}{where}" if size else ""
    about = ", ".join(part for part in (beat.framework if beat else "", who) if part)
    text = Text.assemble((look.name, "bold"), "  ", (look.state.word, STATE_STYLES[look.state.word]))
    if about:
        text.append(f"  {about}")
    if look.state.note:
        text.append(f"\n{look.state.note}", style="dim" if look.state.word == "stopped" else "red")
    return text


def _progress(look: Look) -> RenderableType:
    beat = _first_of(look.heard)
    # the line of metrics that the epoch is read from may be newer than all heartbeats
    step = max(look.end.step or 0, *(heard.beat.step for heard in look.heard.values()), 0)
    total = beat.total_steps if beat is not None else None
    words = [_epoch(look), f"step {step:,}" + (f"/{total:,}" if total else ""), *_values(look)]
    if total and look.state.word == "running":
        rate = max((heard.beat.steps_per_second or 0.0 for heard in look.heard.values()), default=0.0)
        words += [f"{in_time((total - step) / rate)} left"] if rate and step < total else []
    line = _Words([word for word in words if word])
    if not total:
        return line
    table = Table.grid(padding=(0, 1), expand=False)
    table.add_column(width=_BAR)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    done = round(min(step / total, 1.0) * _BAR)
    bar = Text.assemble(("━" * done, "green"), ("┄" * (_BAR - done), "dim"))  # told apart without colours, too
    table.add_row(bar, f"{step / total:.0%}", line)
    return table


@dataclass(frozen=True)
class _Words:
    """Phrases side by side; a line ends between two of them."""

    phrases: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = ""
        for phrase in self.phrases:
            if line and len(line) + 2 + len(phrase) > options.max_width:
                yield Text(line)
                line = ""
            line += f"  {phrase}" if line else phrase
        yield Text(line)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        widest = sum(len(phrase) + 2 for phrase in self.phrases) - 2
        return Measurement(max(map(len, self.phrases), default=0), max(0, widest)).with_maximum(options.max_width)


def _epoch(look: Look) -> str:
    beat = _first_of(look.heard)
    epoch = whole(look.end.train, "epoch")
    if epoch is None:
        return ""
    return f"epoch {epoch + 1}" + (f"/{beat.epochs}" if beat is not None and (beat.epochs or 0) > epoch else "")


def _values(look: Look) -> Sequence[str]:
    train, validation = look.end.train, measures(look.end.validation)
    loss, speed = number(train, "loss"), number(train, "samples_per_second")
    name = readable(validation, look.best_metric) if validation else ""
    best = number(validation, name)
    return [
        "" if loss is None else f"loss {in_measure(loss)}",
        "" if best is None else f"validation {name} {in_measure(best)}",
        "" if speed is None or look.state.word != "running" else f"{speed:,.0f} samples/s",
    ]


@dataclass(frozen=True)
class _Table:
    """The ranks, with as many columns as there is room for."""

    rows: Sequence[Row]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        several = len({row.host for row in self.rows} - {""}) > 1  # then the host has a column
        room = options.max_width - len("rank") - _LEAST_STATE - 2 * _GAP - (_GAP + _LEAST_HOST) * several
        columns = {name: cells for name in COLUMNS if any(cells := [row.cells.get(name, "") for row in self.rows])}
        for name in GIVE_WAY:
            if _width(columns) > room:
                columns.pop(name, None)
        host_width = min(_MOST_HOST, _LEAST_HOST + max(0, room - _width(columns)) // 2)
        yield _table(self.rows, columns, host_width if several else None)


def _width(columns: Mapping[str, Sequence[str]]) -> int:
    return sum(max(len(name), *map(len, cells)) + _GAP for name, cells in columns.items())


def _table(shown: Sequence[Row], columns: Mapping[str, Sequence[str]], host_width: int | None) -> Table:
    table = Table(show_edge=False, pad_edge=False, box=None, padding=(0, _GAP, 0, 0), header_style="bold")
    table.add_column("rank", justify="right", no_wrap=True)
    if host_width is not None:
        table.add_column("host", no_wrap=True, overflow="ellipsis", min_width=_LEAST_HOST, max_width=host_width)
    table.add_column("state", min_width=_LEAST_STATE)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for place, row in enumerate(shown):
        state = Text(row.state, style=_STYLES[row.mood], no_wrap=True, overflow="ellipsis")  # the column that gives way
        cells = [Text(column[place]) for column in columns.values()]
        table.add_row(str(row.rank), *([Text(row.host)] if host_width is not None else []), state, *cells)
    return table


def rows(heard: Mapping[int, Heard], size: int, most: int, unread: Collection[int] = ()) -> tuple[list[Row], int]:
    """At most `most` rows, and how many ranks have none. Args: `unread`: ranks whose heartbeats cannot be read.

    All ranks are in their order. Where there are too many, those that need a look come first: ranks that have failed,
    are silent, or are behind.
    """
    ranks: Sequence[int] = range(size)
    if size > most:
        ranks = sorted(ranks, key=lambda rank: _urgency(heard.get(rank)))[:most]
    return [_row(rank, heard.get(rank), rank in unread) for rank in ranks], max(0, size - most)


def _urgency(heard: Heard | None) -> tuple[float, ...]:
    """Smaller is more urgent."""
    if heard is None:
        return (1.0,)
    beat = heard.beat
    kind = 0.0 if beat.end == "failed" else 2.0 if heard.is_silent else 3.0
    behind = beat.step if beat.waits_in is None else beat.step + 0.5  # who waits in a step is further than who works
    slow = beat.steps_per_second if beat.steps_per_second is not None else 0.0
    return (kind, -heard.age if heard.is_silent else 0.0, behind, slow, beat.rank)


def _row(rank: int, heard: Heard | None, is_unread: bool) -> Row:
    if heard is None:
        return Row(rank, "", "its heartbeat cannot be read" if is_unread else "not heard of", "bad")
    state, mood = _state(heard)
    return Row(rank, heard.beat.host, state, mood, _cells(heard))


def _cells(heard: Heard) -> dict[str, str]:
    beat = heard.beat
    rate = {} if beat.steps_per_second is None or beat.end else {"steps/s": f"{beat.steps_per_second:,.1f}"}
    live = {head: (kind, getattr(beat, key)) for head, (key, kind) in _LIVE.items()}
    return {
        "step": f"{beat.step:,}",
        **rate,
        **{head: _SHOWN[kind](value) for head, (kind, value) in live.items() if value is not None},
        "last sign": f"{in_time(heard.age)} ago",
    }


def _state(heard: Heard) -> tuple[str, Mood]:
    beat = heard.beat
    if beat.end == "failed":
        return f"failed: {beat.error}" if beat.error else "failed", "bad"
    if beat.end:
        return "ended", "over"
    doing = _doing(beat)
    if heard.is_silent:
        return f"silent for {in_time(heard.age)} (was: {doing})", "bad"
    if beat.seconds >= _WORTH_TELLING:
        doing += f" for {in_time(beat.seconds)}"
    if beat.reads and beat.seconds >= _WORTH_TELLING:
        doing += f", {beat.reads}"
    return doing, "waits" if beat.waits_in is not None else "good"


def _doing(beat: Heartbeat) -> str:
    if beat.waits_in is not None:
        return f"waiting in {beat.waits_in}"
    last = f", last collective {beat.collective}" if beat.collective else ""
    return f"{_DOING.get(beat.phase, beat.phase)}{last}"


def _first_of(heard: Mapping[int, Heard]) -> Heartbeat | None:
    """The heartbeat of the lowest rank, for what all ranks say alike."""
    return next((heard[rank].beat for rank in sorted(heard)), None)
