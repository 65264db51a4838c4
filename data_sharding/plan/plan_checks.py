"""What a plan refuses, and why."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from data_sharding.checks import at_least
from data_sharding.errors import PlanError

_LARGEST_BATCH = 2**31 - 1


def check_numbers(num_records: int, global_batch: int, epoch: int, block_records: int, tail: str) -> None:
    """Raise `PlanError` unless a plan with these fields has a step."""
    at_least(1, "num_records", num_records, "A data set with no records has no epoch.", "check the data path.")
    at_least(0, "epoch", epoch, "Epochs count from 0.")
    at_least(1, "block_records", block_records, "A block needs at least one record.")
    if not 1 <= global_batch <= _LARGEST_BATCH:
        raise PlanError(
            f"The global batch size is {global_batch}.",
            f"A step has 1 to {_LARGEST_BATCH} records.",
            f"set --global-batch-size to {'1 or more' if global_batch < 1 else 'less'}.",
        )
    if tail == "drop" and num_records < global_batch:
        raise PlanError(
            f"The data set has {num_records} records, fewer than one global batch of {global_batch}.",
            "With the incomplete last step dropped, the epoch has no step.",
            "set a smaller --global-batch-size, or mask the tail.",
        )


def check_balanced_bytes(lengths: NDArray[np.int64] | None, num_records: int, shuffle: str) -> None:
    """Raise `PlanError` unless the bytes of each step can be balanced."""
    if lengths is None or np.shape(lengths) != (num_records,):
        has = "none" if lengths is None else f"lengths of shape {np.shape(lengths)}"
        raise PlanError(
            f'balance="bytes" was asked for with {has} for {num_records} records.',
            "Bytes cannot be balanced without the length of each record.",
            "make the plan with ShardPlan.for_catalog, or pass lengths.",
        )
    if shuffle == "block":
        raise PlanError(
            'balance="bytes" was asked for with shuffle="block".',
            "Every rank would read from every stream, and fetch blocks for a few of their records.",
            'choose balance="records", or shuffle="global".',
        )
