"""Checks of what callers pass: numbers that count or choose an order, named options, steps and ranks, whole plans."""

import operator
from typing import Any, Final, get_args

import numpy as np

from data_sharding.errors import PlanError

_LARGEST_BATCH: Final = 2**31 - 1


def whole(name: str, value: Any) -> int:
    """`value` as int; numpy's integers become equal ones, so that they select the same order and fingerprint.

    Raises PlanError (it is not an integer, which rounding would hide).
    """
    try:
        if isinstance(value, bool):
            raise TypeError(value)
        return int(operator.index(value))
    except TypeError as error:
        raise PlanError(f"{name} is {value!r}.", "It must be a whole number.", f"pass an int as {name}.") from error


def at_least(least: int, name: str, value: Any, why: str, hint: str = "") -> int:
    """`value` as int; `why` and `hint` are sentences for the error.

    Raises PlanError (it is not an integer, or below `least`).
    """
    number = whole(name, value)
    if number < least:
        raise PlanError(f"{name} is {number}.", why, hint or f"set {name} to {least} or more.")
    return number


def one_of(name: str, value: object, literal: Any) -> None:
    """Raise `PlanError` unless `value` is one of a `Literal`'s values."""
    if value not in get_args(literal):
        fact = f"{name}={value!r} was asked for."
        conflict = f"It can be {' or '.join(map(str, get_args(literal)))}."
        raise PlanError(fact, conflict, f"choose one of these for {name}.")


def check_step(step: Any, steps: int) -> None:
    """Raise `PlanError` unless `step` is one of an epoch's `steps`."""
    if not 0 <= whole("step", step) < steps:
        fact = f"Step {step} was asked for."
        raise PlanError(fact, f"The epoch has steps 0 to {steps - 1}.", "begin the next epoch.")


def check_rank(rank: Any, size: Any) -> None:
    """Raise `PlanError` unless 0 <= rank < size."""
    if not 0 <= whole("rank", rank) < whole("size", size):
        fact = f"Rank {rank} of size {size} was asked for."
        raise PlanError(fact, "Ranks count from 0 to size - 1.", "check the topology.")


def check_batch_fits(global_batch: Any, size: int) -> None:
    """Raise `PlanError` if a global batch has fewer records than there are ranks."""
    if whole("global_batch", global_batch) < size:
        fact = f"The global batch of {global_batch} is smaller than the {size} ranks."
        conflict = "Some ranks would have no record in any step."
        raise PlanError(fact, conflict, f"set --global-batch-size to {size} or more, or start fewer ranks.")


def check_numbers(num_records: int, global_batch: int, epoch: int, block_records: int, tail: str) -> None:
    """Raise `PlanError` unless a plan with these fields has a step."""
    at_least(1, "num_records", num_records, "A data set with no records has no epoch.", "check the data path.")
    at_least(0, "epoch", epoch, "Epochs count from 0.")
    at_least(1, "block_records", block_records, "A block needs at least one record.")
    if not 1 <= global_batch <= _LARGEST_BATCH:
        fact = f"The global batch size is {global_batch}."
        conflict = f"A step has 1 to {_LARGEST_BATCH} records."
        raise PlanError(fact, conflict, f"set --global-batch-size to {'1 or more' if global_batch < 1 else 'less'}.")
    if tail == "drop" and num_records < global_batch:
        raise PlanError(
            f"The data set has {num_records} records, fewer than one global batch of {global_batch}.",
            "With the incomplete last step dropped, the epoch has no step.",
            "set a smaller --global-batch-size, or mask the tail.",
        )


def check_together(together: int, global_batch: int, shuffle: str) -> None:
    """Raise `PlanError` unless all copies of a record come in one global batch."""
    if global_batch % together:
        raise PlanError(
            f"Each record is to come {together} times in one batch, and a global batch has {global_batch} records.",
            "Copies of a record would come in two batches.",
            f"use a multiple of {together} as the global batch size, or repeat(…) without in_one_batch.",
        )
    if shuffle == "block":
        raise PlanError(
            'All copies of a record are to come in one batch, with shuffle="block".',
            "There, what is drawn one after the other comes in steps one after the other.",
            'choose shuffle="global", or repeat(…) without in_one_batch.',
        )


def check_lengths_known(by_length: Any, num_records: int, draws: bool) -> None:
    """Raise `PlanError` unless records can be put into steps by their lengths."""
    if draws:
        raise PlanError(
            'shuffle="length" was asked for with a catalog that draws records more or less than once an epoch.',
            "Steps of records of similar length have each record once.",
            'choose shuffle="global", or a catalog without mix(), repeat() and sample().',
        )
    if by_length is None or np.shape(by_length) != (num_records,):
        fact = 'shuffle="length" was asked for without the order of all records by length.'
        raise PlanError(fact, "It decides which records form a step.", "make the plan with ShardPlan.for_catalog.")


def check_balanced_bytes(lengths: Any, num_records: int | None, shuffle: str) -> None:
    """Raise `PlanError` unless the bytes of each step can be balanced; None: any number of records."""
    if lengths is None or (num_records is not None and np.shape(lengths) != (num_records,)):
        has = "none" if lengths is None else f"lengths of shape {np.shape(lengths)}"
        fact = f'balance="bytes" was asked for with {has} for {num_records} records.'
        conflict = "Bytes cannot be balanced without the length of each record."
        raise PlanError(fact, conflict, "make the plan with ShardPlan.for_catalog, or pass lengths.")
    if shuffle == "block":
        raise PlanError(
            'balance="bytes" was asked for with shuffle="block".',
            "Every rank would read from every stream, and fetch blocks for a few of their records.",
            'choose balance="records", or shuffle="global".',
        )
