"""What formats without checksums have in common."""

from __future__ import annotations

import numpy as np

from data_sharding.errors import PlanError
from data_sharding.formats.interface import Unpacked


def all_intact(raw: list[bytes]) -> Unpacked:
    """Spans that are payloads as they are, and that nothing in the file speaks against."""
    return Unpacked(raw, np.ones(len(raw), np.bool_))


def check_choice(format_name: str, option: str, value: object, valid: tuple[object, ...]) -> None:
    """Raise PlanError unless a format's option has one of the `valid` values."""
    if value not in valid:
        raise PlanError(
            f"The format {format_name} was given {option}={value!r}.",
            f"It can be {' or '.join(map(repr, valid))}.",
            f"choose one of these for {option}.",
        )
