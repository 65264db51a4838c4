"""What a plan refuses, and why."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from data_sharding.checks import whole
from data_sharding.errors import PlanError

if TYPE_CHECKING:
    from data_sharding.plan.shard_plan import ShardPlan


def check_options(plan: ShardPlan, choices: Iterable[tuple[str, str, Any]]) -> None:
    """Check a plan's fields; choices are names, values and the Literal types that they belong to.

    Raises:
        PlanError: they cannot be carried out.
    """
    for name, value, literal in choices:
        valid = get_args(literal)
        if value not in valid:
            raise PlanError(
                f"{name}={value!r} was asked for.",
                f"It can be {' or '.join(valid)}.",
                f"choose one of these for {name}.",
            )
    _check_numbers(plan)
    if plan.balance == "bytes":
        _check_bytes(plan)


def check_slice(plan: ShardPlan, rank: int, size: int, step: int) -> None:
    """Check that a step is in the epoch, and that rank and size fit each other and the global batch.

    Raises:
        PlanError: not so.
    """
    rank, size, step = whole("rank", rank), whole("size", size), whole("step", step)
    if not 0 <= step < plan.steps:
        raise PlanError(
            f"Step {step} was asked for.", f"The epoch has steps 0 to {plan.steps - 1}.", "begin the next epoch."
        )
    if not 0 <= rank < size:
        raise PlanError(
            f"Rank {rank} of size {size} was asked for.", "Ranks count from 0 to size - 1.", "check the topology."
        )
    if plan.global_batch < size:
        raise PlanError(
            f"The global batch of {plan.global_batch} is smaller than the {size} ranks.",
            "Some ranks would have no record in any step.",
            f"set --global-batch-size to {size} or more, or start fewer ranks.",
        )


_LARGEST_BATCH = 2**31 - 1


def _check_numbers(plan: ShardPlan) -> None:
    if plan.global_batch > _LARGEST_BATCH:
        raise PlanError(
            f"The global batch size is {plan.global_batch}.",
            f"A step has at most {_LARGEST_BATCH} records.",
            "set a smaller --global-batch-size.",
        )
    if plan.num_records < 1:
        raise PlanError("The data set has no records.", "An epoch needs at least one.", "check the data path.")
    if plan.epoch < 0:
        raise PlanError(f"Epoch {plan.epoch} was asked for.", "Epochs count from 0.", "use an epoch of 0 or more.")
    if plan.global_batch < 1:
        raise PlanError(
            f"The global batch size is {plan.global_batch}.",
            "A step needs at least one record.",
            "set --global-batch-size to 1 or more.",
        )
    if plan.block_records < 1:
        raise PlanError(
            f"block_records is {plan.block_records}.",
            "A block needs at least one record.",
            "set block_records to 1 or more.",
        )
    if plan.tail == "drop" and plan.num_records < plan.global_batch:
        raise PlanError(
            f"The data set has {plan.num_records} records, fewer than one global batch of {plan.global_batch}.",
            "With the incomplete last step dropped, the epoch has no step.",
            "set a smaller --global-batch-size, or mask the tail.",
        )


def _check_bytes(plan: ShardPlan) -> None:
    if plan.lengths is None or np.shape(plan.lengths) != (plan.num_records,):
        has = "none" if plan.lengths is None else f"lengths of shape {np.shape(plan.lengths)}"
        raise PlanError(
            f'balance="bytes" was asked for with {has} for {plan.num_records} records.',
            "Bytes cannot be balanced without the length of each record.",
            "make the plan with ShardPlan.for_catalog, or pass lengths.",
        )
    if plan.shuffle == "block":
        raise PlanError(
            'balance="bytes" was asked for with shuffle="block".',
            "Every rank would read from every lane, and fetch blocks for a few of their records.",
            'choose balance="records", or shuffle="global".',
        )
