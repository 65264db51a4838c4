"""`hvdtrain logs RUN`: the logs of all ranks as one, in the order of time."""

import argparse
import logging
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console

from hvdtrain.cli.command_parser import CommandParser
from hvdtrain.errors import UsageError
from hvdtrain.history.rank_logs import LogLine, RunLogs, follow
from hvdtrain.history.run_facts import require_run
from hvdtrain.history.run_state import is_over
from hvdtrain.run.sinks.terminal import printable

_DESCRIPTION = """\
Print the logs of all workers of a run, merged by time; each line begins with its rank. The lines of a traceback stay
with their record. With --follow, new lines are printed as they come, until the run ends or Ctrl-C is pressed."""
_LEVELS: Final = ("debug", "info", "warning", "error")
_LOOK_SECONDS: Final = 0.5
_RANGE: Final = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")
_MOST_RANKS: Final = 100_000
_RANKS: Final = 10  # that a message names
_COLOURS: Final = ((logging.ERROR, "\x1b[31m"), (logging.WARNING, "\x1b[33m"))
_PLAIN: Final = "\x1b[0m"


def run(argv: Sequence[str]) -> int:
    """Print what `argv` asks for; returns 0."""
    parser = CommandParser("hvdtrain logs", "Nothing was printed.", description=_DESCRIPTION)
    parser.add_argument("run", metavar="RUN", type=Path, help="a run folder")
    parser.add_argument(
        "--rank",
        action="extend",
        type=_ranks,
        default=[],
        metavar="N",
        help="only these ranks: 3, or 0,4-7; may be repeated",
    )
    parser.option("--level", "debug", "only records of this level or above", choices=_LEVELS)
    parser.add_argument("--follow", "-f", action="store_true", help="keep printing new lines until the run ends")
    options = parser.parse(argv)
    require_run(options.run)
    logs = RunLogs(options.run, options.rank)
    if not options.follow:
        _require_logs(options.run, options.rank, logs)
        _print(logs.lines(whole=True), options.level)
    else:
        with suppress(KeyboardInterrupt):
            _print(follow(logs, partial(is_over, options.run), _wait), options.level)
    for name, problem in logs.problems.items():
        sys.stderr.write(f"hvdtrain: logs/{name} {problem}\n")
    return 0


def _wait() -> None:
    sys.stdout.flush()
    time.sleep(_LOOK_SECONDS)


def _ranks(text: str) -> list[int]:
    """ "0,4-7" → [0, 4, 5, 6, 7]."""
    parts = [_RANGE.fullmatch(part) for part in text.split(",")]
    ends = [(int(part[1]), int(part[2] or part[1])) for part in parts if part is not None]
    if len(ends) < len(parts) or any(first > last or last - first > _MOST_RANKS for first, last in ends):
        raise argparse.ArgumentTypeError(f"{text!r} does not name ranks such as 3, or 0,4-7")
    return [rank for first, last in ends for rank in range(first, last + 1)]


def _require_logs(run: Path, wanted: Sequence[int], logs: RunLogs) -> None:
    every = RunLogs(run)
    there = every.ranks()
    if not there and not every.has_hosts():
        raise UsageError(
            f"{run} has no logs.",
            "Each worker writes logs/rank_N.log there, or all of a host logs/host_NAME.log.",
            "see `hvdtrain ls`.",
        )
    missing = [rank for rank in wanted if rank not in logs.ranks()]
    if missing and every.has_hosts():
        there = sorted({line.rank for line in every.lines(whole=True)})
        missing = [rank for rank in wanted if rank not in there]
    if missing:
        raise UsageError(
            f"{run} has no {f'line of rank {missing[0]}' if every.has_hosts() else f'logs/rank_{missing[0]}.log'}.",
            f"There are logs of {_listed(there)}.",
            "leave --rank out for all, or name one of these.",
        )


def _listed(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:_RANKS]))}" + (" and others" if len(ranks) > _RANKS else "")


def _print(lines: Iterator[LogLine], level: str) -> None:
    """Line by line where somebody watches: a pipe, too, may lead to a terminal."""
    console, least = Console(), logging.getLevelNamesMapping()[level.upper()]
    colours = console.is_terminal and not console.no_color
    for line in lines:
        if line.level >= least or line.level == 0:  # of unknown level, before the first record
            text = f"rank {line.rank}  {printable(line.text.decode(errors='replace'))}"
            colour = next((code for least_level, code in _COLOURS if line.level >= least_level), "") if colours else ""
            sys.stdout.write(f"{colour}{text}{_PLAIN if colour else ''}\n")
    sys.stdout.flush()
