"""What a page says before its tables: what is not a win, and which goals are reached."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from benchmarks.comparison import Comparison
from benchmarks.statistics import Estimate, Ratio


def shown(estimate: Estimate) -> str:
    """With its interval."""
    return f"{_number(estimate.median)} ({_number(estimate.low)}–{_number(estimate.high)})"


def _number(value: float) -> str:
    """Two decimals, and two digits of what is small."""
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.2g}"


def bracketed(ratio: Ratio, noise: Ratio) -> str:
    """With its interval; in brackets if it is not beyond A against A and chance."""
    return shown(ratio) if ratio.beyond(noise) else f"[{shown(ratio)}]"


def not_a_win(lost: Iterable[str], figure: str = "ours / theirs") -> str:
    """The sentence at the head of a table, from a text with the figure for each comparison that is lost or open."""
    texts = list(lost)
    return f"**Not a win** ({figure}): {'; '.join(texts)}." if texts else f"**Not a win** ({figure}): none of these."


def not_a_win_among(comparison: Comparison, labels: Mapping[str, str], own: Collection[str] = ()) -> str:
    """The same for the arms of one table: those that take less time than ours, or not more beyond chance.

    `own`: ours with other settings, with which nothing is to be won.
    """
    lost = (arm for arm in comparison.others if arm not in own and not comparison.is_won(arm))
    return not_a_win(f"{labels[arm]} {shown(comparison.ours_over(arm))}" for arm in lost)


def how_to_read(comparison: Comparison) -> str:
    """The sentence on the ratios of a table."""
    return (
        f"Below 1, ours takes less time than theirs. A against A: {shown(comparison.noise)}; a ratio in brackets is "
        "not beyond that and chance." + (" One block says nothing about chance." if len(comparison.blocks) == 1 else "")
    )


def cell(comparison: Comparison, arm: str) -> str:
    """A table's ratio of ours to an arm."""
    return "1" if arm == comparison.ours else bracketed(comparison.ours_over(arm), comparison.noise)


def at_most(limit: float, found: Estimate, of_what: str) -> str:
    """Whether a goal is reached: the whole interval must be on its side."""
    verdict = _verdict(found.median - limit, found.high - limit)
    return f"**Goal**, at most {limit:.2f} {of_what}: {shown(found)}, {verdict}."


def at_least(limit: float, found: Estimate, of_what: str) -> str:
    """The same for a figure that should be large."""
    verdict = _verdict(limit - found.median, limit - found.low)
    return f"**Goal**, at least {limit:.2f} {of_what}: {shown(found)}, {verdict}."


def _verdict(median_over: float, end_over: float) -> str:
    if end_over <= 0:
        return "reached"
    return "not reached" if median_over > 0 else "not reached beyond chance (its median is)"
