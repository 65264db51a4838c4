"""Options whose text has a syntax of its own: --trace, --check-workers and --process-sets.

--trace         100:110        updates 100 to 110
                10             ten updates, after a warm-up
--check-workers every=100      at each hundredth update
--process-sets  node           one set for each node
                0-3,4-7        commas separate sets; a-b is every rank from a to b
                0+2,1+3        + puts ranks, or ranges of them, into one set
"""

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

from hvdtrain.errors import UsageError

WARM_UP: Final = 10
"""Updates after the start that are not recorded, where only a number is given: they compile, connect, fill caches."""

MOST: Final = 1000  # Updates of one trace: the events of that many steps fit into memory

_STEPS = re.compile(r"(?:(?P<first>\d{1,15}):)?(?P<last>\d{1,15})")


@dataclass(frozen=True)
class TraceSteps:
    """Updates are numbered from 1 since the start of training."""

    first: int | None  # the first one; None: after `WARM_UP`
    last: int  # the last one, or how many where `first` is None

    def after(self, step: int) -> tuple[int, int] | None:
        """The first and the last update that are recorded where training goes on after update `step`; None: none."""
        if self.first is None:
            return step + WARM_UP + 1, step + WARM_UP + self.last
        first = max(self.first, step + 1)
        return (first, self.last) if first <= self.last else None


def trace_steps(text: str) -> TraceSteps:
    """Of "100:110" or "10". Raises UsageError: it is neither, or too many updates."""
    match = _STEPS.fullmatch(text.strip())
    if match is None:
        raise _trace_refusal(text, "It must be the first and the last update to record, or how many.")
    first, last = None if match["first"] is None else int(match["first"]), int(match["last"])
    count = last if first is None else last - first + 1
    if count < 1 or first == 0:
        raise _trace_refusal(text, "It contains no update: they are numbered from 1.")
    if count > MOST:
        raise _trace_refusal(text, f"A trace of {count} updates would be too large: {MOST} are the most.")
    return TraceSteps(first, last)


def updates_between_checks(text: str) -> int:
    """Of "every=100". Raises UsageError: it is something else."""
    word, _, count = text.partition("=")
    if word.strip() != "every" or not count.strip().isdecimal() or not int(count):
        raise UsageError(
            f"--check-workers is {text}.",
            "It must be every=M, where M is how many updates lie between two checks.",
            "try --check-workers every=100.",
        )
    return int(count)


def require_trained(text: str, updates: int) -> None:
    """Raise `UsageError` where a training of so many updates has none of those of `--trace`."""
    first = trace_steps(text).first
    if first is not None and first > updates:
        raise UsageError(
            f"--trace is {text}.",
            f"Training ends after update {updates}, so that nothing would be recorded.",
            f"name earlier updates, e.g. --trace {max(1, updates - 9)}:{updates}.",
        )


def _trace_refusal(text: str, conflict: str) -> UsageError:
    return UsageError(f"--trace is {text}.", conflict, "try --trace 100:110, or --trace 10.")


NODE = "node"

Sets = tuple[tuple[int, ...], ...]  # Each set's ranks in rising order; each rank is in exactly one of them

_RANGE = r"\d{1,7}(?:-\d{1,7})?"
_SET = rf"{_RANGE}(?:\+{_RANGE})*"
_SYNTAX = re.compile(rf"{_SET}(?:,{_SET})*", re.ASCII)
_EXAMPLES = "write node, or ranks as 0-3,4-7, or as 0+2,1+3."


def require_readable(text: str) -> None:
    """Raise `UsageError` unless `text` is "node" or sets of ranks, whatever the number of workers."""
    if text != NODE and not _SYNTAX.fullmatch(text):
        raise UsageError(
            f"--process-sets is {text!r}.", "Commas separate sets, + and - join the ranks of one set.", _EXAMPLES
        )


def resolve(text: str, nodes: Sequence[Hashable]) -> Sets:
    """The sets that `text` means, where `nodes` has each rank's node, by number or name. Raises UsageError: a rank is
    in no set, in two, or does not exist."""
    require_readable(text)
    if text == NODE:
        of_node: dict[Hashable, list[int]] = {}
        for rank, node in enumerate(nodes):
            of_node.setdefault(node, []).append(rank)
        return tuple(tuple(ranks) for ranks in of_node.values())
    size = len(nodes)
    sets = tuple(tuple(rank for part in joined.split("+") for rank in _ranks(part, size)) for joined in text.split(","))
    _require_each_once(text, [rank for ranks in sets for rank in ranks], size)
    return tuple(tuple(sorted(ranks)) for ranks in sets)


def _ranks(part: str, size: int) -> range:
    first, _, last = part.partition("-")
    begin, end = int(first), int(last or first)
    if begin > end:
        raise UsageError(f"--process-sets has the range {part}.", "It ends before it begins.", _EXAMPLES)
    if end >= size:
        raise UsageError(
            f"--process-sets names rank {end}.",
            f"There are {size} workers, the last one rank {size - 1}.",
            "name each of them once, or write node.",
        )
    return range(begin, end + 1)


def _require_each_once(text: str, named: list[int], size: int) -> None:
    missing = sorted(set(range(size)) - set(named))
    twice = sorted({rank for rank in named if named.count(rank) > 1} if len(named) > len(set(named)) else ())
    if missing or twice:
        ranks = ", ".join(map(str, (missing or twice)[:8]))
        raise UsageError(
            f"--process-sets {text} names rank {ranks} {'nowhere' if missing else 'twice'}.",
            f"Each of the {size} workers exchanges gradients with exactly one set.",
            "put each rank into one set, alone if need be.",
        )
