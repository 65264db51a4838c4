"""The picture of a run that `hvdtrain top` draws: how far it is, and a row for each rank."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from hvdtrain.cli.tables import STATE_STYLES
from hvdtrain.cli.top.rows import COLUMNS, GIVE_WAY, Mood, Row, first_of, rows, size_of
from hvdtrain.history.heartbeats import Heard
from hvdtrain.history.metrics_end import MetricsEnd, measures
from hvdtrain.history.reading import number, whole
from hvdtrain.history.run_state import RunState
from hvdtrain.units import in_time

_HEADING_LINES: Final = 8  # above the ranks and below them, on a narrow terminal
_LEAST_ROWS: Final = 3
_BAR: Final = 20
_LEAST_STATE, _LEAST_HOST, _MOST_HOST, _GAP = 16, 6, 24, 2
_STYLES: Final[Mapping[Mood, str]] = {"good": "", "waits": "yellow", "bad": "bold red", "over": "dim"}


@dataclass(frozen=True)
class Look:
    """What was seen of a run at one moment."""

    name: str  # of the run, for people
    state: RunState
    heard: Mapping[int, Heard]  # the heartbeats by rank
    end: MetricsEnd
    workers: int | None  # how many there are, as env.json tells; None where it does not
    unread: frozenset[int] = frozenset()  # ranks whose heartbeats are there and cannot be read


def picture(look: Look, lines: int | None) -> RenderableType:
    """The picture. Args: `lines`: of the terminal, which it fits into; None: it shows all ranks."""
    size = max(size_of(look.heard, look.workers), max(look.unread, default=-1) + 1)
    most = size if lines is None else max(_LEAST_ROWS, lines - _HEADING_LINES)
    shown, left = rows(look.heard, size, most, look.unread)
    parts: list[RenderableType] = [_heading(look, size), _progress(look), Text("")]
    parts += [_Table(shown)] if shown else [Text("No rank has written a heartbeat yet.", style="dim")]
    if left:
        parts.append(Text(f"… and {left:,} more ranks, which are further and not silent", style="dim"))
    return Group(*parts)


def _heading(look: Look, size: int) -> Text:
    beat = first_of(look.heard)
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
    beat = first_of(look.heard)
    step = max((heard.beat.step for heard in look.heard.values()), default=look.end.step or 0)
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
    beat = first_of(look.heard)
    epoch = whole(look.end.train, "epoch")
    if epoch is None:
        return ""
    return f"epoch {epoch + 1}" + (f"/{beat.epochs}" if beat is not None and beat.epochs else "")


def _values(look: Look) -> Sequence[str]:
    train, validation = look.end.train, measures(look.end.validation)
    loss, speed = number(train, "loss"), number(train, "samples_per_second")
    name = next((name for name in validation if name != "loss"), "loss")
    best = number(validation, name)
    return [
        "" if loss is None else f"loss {loss:.4f}",
        "" if best is None else f"validation {name} {best:.4f}",
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
