"""Blocks of ABBA: the order in which arms take turns, and the figure of each arm in each block."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
F = TypeVar("F")


def palindrome(arms: Sequence[T], turn: int) -> list[T]:
    """ABBA over many arms: each twice, in an order that reads the same backwards, begun elsewhere in each turn.

    A drift that is linear in time then falls on all arms alike.
    """
    first = turn % len(arms)
    order = [*arms[first:], *arms[:first]]
    return [*order, *reversed(order)]


def both_runs(arms: Sequence[str], turn: int, run: Callable[[str], F]) -> dict[str, list[F]]:
    """What the two runs of each arm in one block gave, in the order of the runs."""
    runs: dict[str, list[F]] = {arm: [] for arm in arms}
    for arm in palindrome(arms, turn):
        runs[arm].append(run(arm))
    return runs


def measured(
    arms: Sequence[str],
    control: tuple[str, str],
    count: int,
    run: Callable[[str], F],
    shown: Callable[[F], str],
    mean: Callable[[list[F]], F] = statistics.mean,  # type: ignore[assignment]  # where figures are numbers
) -> list[dict[str, F]]:
    """Run `count` blocks, and print each.

    Args:
        arms: what is compared.
        control: one of the arms, and the name under which it runs once more in each block: A against A, which shows
            what chance does.
        count: blocks.
        run: one run of an arm, never asked for the control's second name.
        shown: a run's figure, for people.
        mean: of an arm's two runs.

    Returns:
        For each block, the mean of two runs of each arm and of the control.
    """
    ours, again = control
    blocks = []
    for turn in range(count):
        runs = both_runs([*arms, again], turn, lambda arm: run(ours if arm == again else arm))
        print({arm: [shown(figure) for figure in both] for arm, both in runs.items()}, flush=True)
        blocks.append({arm: mean(both) for arm, both in runs.items()})
    return blocks
