"""Catalogs of which an epoch draws some records more often than others."""

import numbers
from collections.abc import Mapping
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from data_sharding.catalog.catalog_file import COLUMNS
from data_sharding.catalog.joining import Joining
from data_sharding.catalog.parts import require_each_once
from data_sharding.checks import at_least, whole
from data_sharding.draws.draw_rule import DrawRule, require_length
from data_sharding.draws.mixture import EpochLength, Mixture
from data_sharding.draws.repeated import Repeated
from data_sharding.draws.weighted import Weighted
from data_sharding.errors import PlanError


class Drawn(Joining):
    """The methods of `Catalog` that say how often an epoch draws each record.

    Which records an epoch draws depends on the arguments and the epoch only: neither on the seed of the training, which
    shuffles them, nor on the number of workers. The audit compares with these numbers.
    """

    @classmethod
    def mix(cls, shares: Mapping[Self, float], *, epoch: EpochLength = "first exhausted", seed: int = 0) -> Self:
        """Records of several catalogs, from each its share of an epoch: `Catalog.mix({a: 0.7, b: 0.3})`.

        A catalog goes through all of its records before it draws one again, and goes on in the next epoch where it has
        ended in this one.

        Args:
            shares: 0 or more for each catalog; they need not add up to 1.
            epoch: records of an epoch; "first exhausted": as many as until the first catalog has been seen as a whole,
                so that none is drawn twice in the first epoch; later epochs begin where the one before has ended, and
                may draw some twice. "all seen": until each of them has been.
            seed: selects the order in which a catalog is gone through.

        Raises:
            PlanError: shares are negative or all 0, the epoch would be empty, or the catalogs cannot be joined.
        """
        if not isinstance(shares, Mapping) or not all(isinstance(share, numbers.Real) for share in shares.values()):
            raise PlanError(
                f"mix() was given {type(shares).__name__}.",
                "It takes the share of each catalog.",
                "give for example Catalog.mix({first: 0.7, second: 0.3}).",
            )
        joined = cls.concat(*shares)
        sizes = [len(catalog) for catalog in shares]
        return joined._with_draws(Mixture.in_shares(sizes, list(shares.values()), epoch, whole("seed", seed)))

    def repeat(
        self,
        times: int | None = None,
        *,
        weights: ArrayLike | None = None,
        epoch: int | None = None,
        in_one_batch: bool = False,
        seed: int = 0,
    ) -> Self:
        """Each record `times` times an epoch, or as often as its weight says, with other augmentation each time.

        Args:
            times: 1 or more.
            weights: float[N]: a record of weight 2.5 is drawn two or three times an epoch, 2.5 times on average over
                epochs; with `epoch` in the place of it, weights count in proportion to each other.
            epoch: draws of an epoch; default: the sum of the weights.
            in_one_batch: the copies of a record come in one global batch, if this is a multiple of `times` (repeated
                augmentation).
            seed: selects the fractions of weights that are rounded up in an epoch.

        Raises PlanError: neither or both of `times` and `weights` are given, or weights are negative or all 0.
        """
        if (times is None) == (weights is None) or (times is not None and epoch is not None):
            raise PlanError(
                f"repeat(times={times}, weights={None if weights is None else '…'}, epoch={epoch}) was asked for.",
                "Either all records are repeated equally often, or each by its weight.",
                "give repeat(3), or repeat(weights=ARRAY).",
            )
        if times is not None:
            at_least(1, "times", times, "Each record is there once at least.")
            return self._with_draws(Repeated(len(self), whole("times", times), in_one_batch))
        if in_one_batch:
            raise PlanError(
                "in_one_batch was given with weights.",
                "By weight, records have unequal numbers of copies.",
                "leave it out, or give times.",
            )
        assert weights is not None
        count = None if epoch is None else at_least(1, "epoch", epoch, "An epoch has at least one record.")
        return self._with_draws(Weighted.by(weights, len(self), count, whole("seed", seed), replacement=False))

    def sample(self, epoch: int, *, weights: ArrayLike | None = None, seed: int = 0) -> Self:
        """`epoch` draws of an epoch at random with replacement, as torch's `WeightedRandomSampler` makes them.

        Args:
            weights: float[N], in proportion to which records are drawn; default: all alike.

        Raises PlanError: no draws, or weights are negative or all 0.
        """
        count = at_least(1, "epoch", epoch, "An epoch has at least one record.")
        even = np.ones(len(self)) if weights is None else weights
        return self._with_draws(Weighted.by(even, len(self), count, whole("seed", seed), replacement=True))

    def _with_draws(self, draws: DrawRule) -> Self:
        require_each_once(self)
        require_length(draws.length)
        columns = {name: getattr(self, name) for name in COLUMNS}
        made = self._checked(self.format, self.files, columns, self.damage, draws)
        vars(made).update(lost_bytes=self.lost_bytes, source_files=self.source_files)
        return made
