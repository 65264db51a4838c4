"""Plain tables on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hvdtrain.history.run_state import Word
from hvdtrain.run.sinks.terminal import printable

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod

STATE_STYLES: Final[Mapping[Word, str]] = {
    "running": "bold green",
    "finished": "green",
    "stopped": "yellow",
    "failed": "bold red",
    "lost": "red",
    "unknown": "red",
}
"""How the states of runs look on a terminal that has colours; the word itself is always there."""

_GAP = 2
_UNKNOWN_COLUMNS = 80
_PIPE_COLUMNS = 1000  # where nobody looks at a terminal, no column is left out


@dataclass(frozen=True)
class Column:
    """A column of `print_fitting`."""

    head: str
    cells: Sequence[str]  # one a row
    style: Sequence[str] = ()  # of each cell; none: all are plain
    is_number: bool = False  # it is set to the right
    is_whole: bool = False  # no cell may go on in another line
    # among the columns that are left out on a narrow terminal, the lowest goes first; None: it stays
    priority: int | None = None

    @property
    def width(self) -> int:
        """In columns of the terminal."""
        from rich.cells import cell_len

        return max(map(cell_len, [self.head, *self.cells]))


def console() -> Console:
    """Of standard output. A pipe gets long lines, and no colours."""
    screen = _screen()
    return screen if screen.is_terminal else _screen(_PIPE_COLUMNS)


def _screen(width: int | None = None) -> Console:
    from rich.console import Console

    class Screen(Console):
        def on_broken_pipe(self) -> None:
            """Nobody reads any more: rich would end the process with exit code 1."""
            raise BrokenPipeError

    screen = Screen(width=width)
    if screen.width < 1:  # of COLUMNS=0, with which nothing would be printed
        screen.width = _UNKNOWN_COLUMNS
    return screen


def print_fitting(columns: Sequence[Column], width: int | None = None) -> None:
    """Print a table without lines that fits the terminal: empty columns are left out, and further ones by priority.

    Args: `width`: of the terminal, where a launcher stands before it: then there are no colours.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    screen = console() if width is None else Console(width=width, color_system=None, highlight=False)
    shown = _fitting([column for column in columns if any(column.cells)], screen.width)
    table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for column in shown:
        side: JustifyMethod = "right" if column.is_number else "left"
        keeps_whole = column.is_whole or column.is_number or bool(column.style)  # half of a number looks like one
        table.add_column(column.head, justify=side, overflow="fold", no_wrap=keeps_whole)
    for row in range(len(columns[0].cells)):
        table.add_row(*(Text(printable(c.cells[row]), style=c.style[row] if c.style else "") for c in shown))
    if width is None:
        screen.print(table)
        return
    with screen.capture() as text:
        screen.print(table)
    print("\n".join(line.rstrip() for line in text.get().splitlines()))


def _fitting(columns: list[Column], width: int) -> list[Column]:
    shown = list(columns)
    while sum(column.width + _GAP for column in shown) - _GAP > width:
        optional = [column for column in shown if column.priority is not None]
        if not optional:
            break
        shown.remove(min(optional, key=lambda column: column.priority or 0))
    return shown


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: bool = True) -> None:
    """Print rows under column heads; with `numbers`, all columns but the first to the right."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", show_edge=False, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if numbers and number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))  # Text: a value such as n[1-3] is not markup
    console().print(table)
