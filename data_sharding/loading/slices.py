"""Slices of several ranks as one batch, each read and decoded by itself, as the rank that it is of would do it.

What `decode` makes of a record, and which record stands in for a damaged one, may depend on what else is in the batch.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import PlanError
from data_sharding.loading.decoding import Decoded
from data_sharding.loading.step_batches import Fetch
from data_sharding.sample_random import SampleRandom


def slice_places(global_batch: int, rank: int, size: int, slices: int) -> list[slice]:
    """Where the slices of so many ranks, from `rank` on, are in the rows of a batch of all of them."""
    begins = [one * global_batch // size for one in range(rank, rank + slices + 1)]
    return [slice(begin - begins[0], end - begins[0]) for begin, end in zip(begins, begins[1:], strict=False)]


def by_slices(fetch: Fetch, places: Sequence[slice]) -> Fetch:
    """Reads and decodes each slice by itself. What it returns raises PlanError: their arrays do not fit together."""

    def fetch_slices(
        ids: NDArray[np.int64],
        random: SampleRandom | None,
        longest: int | None,
        ranges: NDArray[np.int64] | None,
    ) -> Decoded:
        return _joined(
            [
                fetch(
                    ids[rows],
                    None if random is None else random.of_rows(rows),
                    longest,
                    None if ranges is None else ranges[rows],
                )
                for rows in places
            ]
        )

    return fetch_slices


def _joined(parts: Sequence[Decoded]) -> Decoded:
    first = parts[0].features
    layouts = [{name: (array.dtype, array.shape[1:]) for name, array in part.features.items()} for part in parts]
    if any(layout != layouts[0] for layout in layouts):
        raise PlanError(
            f"The decode function returned other arrays for one slice of a batch than for another: {_shown(layouts)}.",
            "Slices of several ranks are one batch here, and rows of different shapes cannot be.",
            "let shapes depend on nothing but the record's own type, or pad to the longest of the global batch.",
        )
    features = {name: np.concatenate([part.features[name] for part in parts]) for name in first}
    reasons = {record: reason for part in parts for record, reason in part.reasons.items()}
    return Decoded(features, np.concatenate([part.intact for part in parts]), reasons)


def _shown(layouts: Sequence[dict[str, Any]]) -> str:
    """The first two layouts that differ."""

    def words(layout: dict[str, Any]) -> str:
        return ", ".join(f"{name} {dtype} {list(shape)}" for name, (dtype, shape) in layout.items())

    other = next(layout for layout in layouts if layout != layouts[0])
    return f"{words(layouts[0])}, and {words(other)} for each row"
