"""`hvdtrain top RUN`: a live view of all ranks of a run, from the files that they write."""

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.live import Live

from hvdtrain.cli.command_parser import CommandParser, positive
from hvdtrain.cli.top.screen import Look, picture
from hvdtrain.end_signals import ENDING, exiting_at
from hvdtrain.history.heartbeats import Listener
from hvdtrain.history.metrics_end import read_metrics_end
from hvdtrain.history.reading import mapping, text, whole
from hvdtrain.history.run_facts import read_facts, read_result
from hvdtrain.history.run_state import is_locked, state_of
from hvdtrain.rank_summary import FROM_RANKS

_PIPE_COLUMNS: Final = 160
_DESCRIPTION = """\
Show what each rank of a run does: its state, step, steps per second, memory and GPU, and how long ago it was heard of.
Only files of the run folder are read, so that any host which sees it can watch. q or Ctrl-C ends. Where the output is
no terminal, one table is printed, as with --once."""


def run(argv: Sequence[str]) -> int:
    """Show the run that `argv` names until q is pressed; returns 0."""
    parser = CommandParser("hvdtrain top", "Nothing was shown.", description=_DESCRIPTION)
    parser.add_argument("run", metavar="RUN", type=Path, help="a run folder")
    parser.add_argument("--once", action="store_true", help="print one table, of at most 64 ranks, and end")
    parser.add_argument("--all", action="store_true", help="with --once: print all ranks, however many")
    parser.option("--interval", 2.0, "seconds between two looks", type=positive("--interval"), metavar="S")
    options = parser.parse(argv)
    look, console = _looks_at(options.run), Console()
    if options.once or not console.is_terminal or console.is_dumb_terminal:
        _print(look(), console, most=None if options.all else FROM_RANKS)
        return 0
    with exiting_at(ENDING):
        _print(_watch(look, console, options.interval), console, console.height)
    return 0


def _looks_at(run: Path) -> Callable[[], Look]:
    """What looks at the run, once for each call. Raises UsageError (there is no run)."""
    facts, listener = read_facts(run), Listener(run)
    workers = whole(mapping(facts.environment, "topology"), "size")
    best_metric = text(facts.config, "best_metric")

    def look() -> Look:
        heard, end = listener.hear(), read_metrics_end(run / "metrics.jsonl")
        state = state_of(run, read_result(run), end, heard, is_locked(run))
        return Look(run.resolve().name, state, heard, end, workers, frozenset(listener.unread), best_metric)

    return look


def _watch(look: Callable[[], Look], console: Console, interval: float) -> Look:
    """Draw until a key or Ctrl-C ends it; returns what was seen last."""
    seen = look()
    with suppress(KeyboardInterrupt), _keys_at_once(), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(picture(seen, console.height), refresh=True)
            if _wait_for_key("qQ", interval):
                break
            seen = look()
    return seen


def _print(seen: Look, console: Console, lines: int | None = None, most: int | None = None) -> None:
    """Where the output is not a terminal, lines are as long as they need to be."""
    if not console.is_terminal:
        console = Console(width=_PIPE_COLUMNS)
    console.print(picture(seen, lines, most))


@contextmanager
def _keys_at_once() -> Iterator[None]:
    """In the block, keys arrive when they are pressed, and are not shown. Without a terminal, nothing changes."""
    if not sys.stdin.isatty():
        yield
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _wait_for_key(wanted: str, seconds: float) -> bool:
    """Wait for so many seconds, or until one of the keys `wanted` is pressed; whether one was."""
    end = time.monotonic() + seconds
    if not sys.stdin.isatty():
        time.sleep(seconds)
        return False
    while (left := end - time.monotonic()) > 0:
        readable, _, _ = select.select([sys.stdin], [], [], left)
        if readable:
            pressed = os.read(sys.stdin.fileno(), 64).decode(errors="replace")
            if not pressed or set(wanted) & set(pressed):  # nothing: the terminal is gone
                return True
    return False
