"""Imported by every Python that has this folder on its path: its time of day jumps, to and fro, by days."""

from __future__ import annotations

import itertools
import time

_TRUE = time.time
_AWAY_S = itertools.cycle([0.0, 3 * 86_400.0, -2 * 86_400.0])


def jumping() -> float:
    """Another day at each call."""
    return _TRUE() + next(_AWAY_S)


time.time = jumping
