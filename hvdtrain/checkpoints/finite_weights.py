"""NaN and infinity in weights: what keeps them out of checkpoints."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdtrain.state import State


def infinite_from_the_start(state: State) -> frozenset[str]:
    """Names of weights and buffers that hold infinity on purpose, as masks of attention do."""
    return frozenset(name for name, array in _weights(state).items() if np.isinf(array).any())


def weights_not_finite(state: State, infinite: frozenset[str] = frozenset()) -> list[str]:
    """Names, without "model/", of weights and buffers that hold NaN, or infinity and are not among `infinite`."""
    return [
        name.removeprefix("model/")
        for name, array in _weights(state).items()
        if not np.isfinite(array).all() and (name not in infinite or np.isnan(array).any())
    ]


def _weights(state: State) -> dict[str, NDArray[Any]]:
    return {name: array for name, array in state.items() if name.startswith("model/") and array.dtype.kind in "fc"}
