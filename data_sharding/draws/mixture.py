"""Several sources in given shares: each goes through its own records again and again, through all epochs."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from data_sharding.checks import at_least
from data_sharding.draws.draw_rule import nothing_drawn, require_length
from data_sharding.errors import PlanError
from data_sharding.permutation import keys_from, permute_each
from data_sharding.sample_random import GOLDEN, mix

EpochLength = int | Literal["first exhausted", "all seen"]
"""Draws of an epoch: a number; what it takes until the first source, or the last one, has been seen as a whole."""

_LONGEST_RUN: Final = 64
_LEAST_RUNS: Final = 256


@dataclass(frozen=True)
class Mixture:
    """Draws from S sources, the records of which stand one source behind the other.

    A source of n records that gives k draws an epoch goes through all of its n records before it draws one again, in
    another order each time, and goes on in the next epoch where it has ended in this one. So after e epochs each of its
    records was drawn floor(e k / n) or ceil(e k / n) times. What is shuffled are runs of up to 64 neighbours, so that
    files which are read in blocks are still read in blocks; a plan shuffles single draws.

    Attributes:
        sizes: records of each source.
        counts: draws of each in an epoch.
        seed: selects the orders of passes.
    """

    sizes: tuple[int, ...]
    counts: tuple[int, ...]
    seed: int

    together = 1
    weights = None

    @classmethod
    def in_shares(cls, sizes: Sequence[int], shares: Sequence[float], epoch: EpochLength, seed: int) -> "Mixture":
        """That which draws `shares` (which need not add up to 1) of an epoch's draws from sources of these sizes.

        Raises PlanError: shares are negative, not finite or all 0, or the epoch has no draw or too many.
        """
        weights = np.asarray(shares, np.float64)
        if not len(weights) or not np.isfinite(weights).all() or (weights < 0).any() or not weights.sum() > 0:
            raise nothing_drawn(
                f"A mixture was asked for with the shares {', '.join(f'{share:g}' for share in weights)}.",
                "give each source a share of 0 or more, and at least one of them more than 0.",
            )
        weights /= weights.sum()
        length = _length(np.asarray(sizes), weights, epoch)
        require_length(length)  # before it becomes an int64
        counts = _apportioned(weights, max(1, int(length)))
        return cls(tuple(map(int, sizes)), tuple(counts.tolist()), seed)

    @property
    def length(self) -> int:
        return sum(self.counts)

    def records(self, numbers: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        ends, counts, sizes, firsts, runs, keys = self._columns
        flat = numbers.reshape(-1)
        source = np.searchsorted(ends, flat, side="right")
        draw = flat - (ends - counts)[source] + epoch * counts[source]
        passes, place = np.divmod(draw, sizes[source])
        length = runs[source]
        run, inside = np.divmod(place, length)
        whole_runs = sizes[source] // length
        shuffled = np.flatnonzero(run < whole_runs)  # what is left behind the last whole run stays there
        of = source[shuffled]
        pass_keys = mix(keys[of] + (passes[shuffled].astype(np.uint64) + np.uint64(1)) * GOLDEN)
        run[shuffled] = permute_each(run[shuffled], whole_runs[shuffled], pass_keys)
        ids: NDArray[np.int64] = firsts[source] + run * length + inside
        return ids.reshape(numbers.shape)

    def describe(self) -> Mapping[str, Any]:
        return {"rule": "mixture", **dataclasses.asdict(self)}

    @functools.cached_property
    def _columns(self) -> tuple[NDArray[Any], ...]:
        """Of each source int64[S]: the end of its draws, their number, its records, the first of them, the length of a
        run; and a key uint64[S]."""
        sizes, counts = np.array(self.sizes, np.int64), np.array(self.counts, np.int64)
        runs = np.clip(sizes // _LEAST_RUNS, 1, _LONGEST_RUN)
        texts = [f"data_sharding.mixture/1 {self.seed} {number}" for number in range(len(sizes))]
        keys = np.array([keys_from(text, 1)[0] for text in texts], np.uint64)
        return np.cumsum(counts), counts, sizes, np.cumsum(sizes) - sizes, runs, keys


def _length(sizes: NDArray[np.int64], shares: NDArray[np.float64], epoch: EpochLength) -> float:
    drawn = shares > 0
    with np.errstate(over="ignore"):  # infinite is too long, too
        until_seen = sizes[drawn] / shares[drawn]
    if epoch == "first exhausted":
        return float(np.floor(until_seen.min() + 1e-6))
    if epoch == "all seen":
        return float(np.ceil(until_seen.max() - 1e-6))
    if isinstance(epoch, str):
        raise PlanError(
            f"The epoch of a mixture was to end {epoch!r}.",
            "It has a number of records, or ends when a source is seen.",
            'give epoch=N, "first exhausted" or "all seen".',
        )
    return at_least(1, "epoch", epoch, "An epoch has at least one record.")


def _apportioned(shares: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """int64[S] that add up to `total`, each the share of it rounded down or up: largest remainders get what is left."""
    exact = shares * total
    counts = np.floor(exact + 1e-9).astype(np.int64)
    left = total - int(counts.sum())
    counts[np.argsort(-(exact - counts), kind="stable")[:left]] += 1
    return counts
