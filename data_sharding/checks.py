"""Checks of what callers pass: numbers that count or choose an order, named options, steps and ranks.

Needs the standard library only.
"""

from __future__ import annotations

import operator
from typing import Any, get_args

from data_sharding.errors import PlanError


def whole(name: str, value: Any) -> int:
    """`value` as int; numpy's integers become equal ones, so that they select the same order and fingerprint.

    Raises:
        PlanError: it is no integer, which rounding would hide: 64.5 records, a seed of None.
    """
    try:
        if isinstance(value, bool):
            raise TypeError(value)
        return int(operator.index(value))
    except TypeError as error:
        raise PlanError(f"{name} is {value!r}.", "It must be a whole number.", f"pass an int as {name}.") from error


def at_least(least: int, name: str, value: Any, why: str, hint: str = "") -> int:
    """`value` as int; `why` and `hint` are sentences for the error.

    Raises:
        PlanError: it is no integer, or below `least`.
    """
    number = whole(name, value)
    if number < least:
        raise PlanError(f"{name} is {number}.", why, hint or f"set {name} to {least} or more.")
    return number


def one_of(name: str, value: object, literal: Any) -> None:
    """Raise `PlanError` unless `value` is one of a `Literal`'s values."""
    if value not in get_args(literal):
        raise PlanError(
            f"{name}={value!r} was asked for.",
            f"It can be {' or '.join(map(str, get_args(literal)))}.",
            f"choose one of these for {name}.",
        )


def check_step(step: Any, steps: int) -> None:
    """Raise `PlanError` unless `step` is one of an epoch's `steps`."""
    if not 0 <= whole("step", step) < steps:
        raise PlanError(
            f"Step {step} was asked for.", f"The epoch has steps 0 to {steps - 1}.", "begin the next epoch."
        )


def check_rank(rank: Any, size: Any) -> None:
    """Raise `PlanError` unless 0 <= rank < size."""
    if not 0 <= whole("rank", rank) < whole("size", size):
        raise PlanError(
            f"Rank {rank} of size {size} was asked for.", "Ranks count from 0 to size - 1.", "check the topology."
        )


def check_batch_fits(global_batch: Any, size: int) -> None:
    """Raise `PlanError` if a global batch has fewer records than there are ranks."""
    if whole("global_batch", global_batch) < size:
        raise PlanError(
            f"The global batch of {global_batch} is smaller than the {size} ranks.",
            "Some ranks would have no record in any step.",
            f"set --global-batch-size to {size} or more, or start fewer ranks.",
        )
