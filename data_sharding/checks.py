"""Numbers that count, or choose an order: of any integer type, and nothing else."""

from __future__ import annotations

import operator
from typing import Any

from data_sharding.errors import PlanError


def whole(name: str, value: Any) -> int:
    """`value` as int; numpy's integers become equal ones, so that they select the same order and fingerprint.

    Raises:
        PlanError: it is none, which rounding would hide: 64.5 records, a seed of None.
    """
    try:
        if isinstance(value, bool):
            raise TypeError(value)
        return int(operator.index(value))
    except TypeError as error:
        raise PlanError(f"{name} is {value!r}.", "It must be a whole number.", f"pass an int as {name}.") from error
