"""Weights for a model: in its framework's names and axes, all there, none left over, each of the right shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hvdtrain.errors import UsageError
from hvdtrain.models.exchange import COUNTER, to_keras, to_torch
from hvdtrain.weights.named_weights import Arrays, NamedWeights, without_wrappers

LISTED: Final = 20
"""Names in a message; the number of the others is told."""

_HINT: Final = "build the model with the --model and --task-args that they were trained with."


def fitted(found: NamedWeights, wanted: Mapping[str, NDArray[Any]], framework: str) -> Arrays:
    """`found` as the arrays that a model of `framework` has under the names of `wanted`, with the dtypes of `wanted`.

    BatchNorm's num_batches_tracked, which old state_dicts and Keras lack, stays as it is in `wanted`.

    Raises:
        UsageError: names are missing or left over, which are listed; shapes or kinds of number differ; NaN.
    """
    arrays = _translated(found, wanted, framework)
    counters = {name: array for name, array in wanted.items() if name.rpartition(".")[2] == COUNTER}
    arrays = {**{name: array for name, array in counters.items() if name not in arrays}, **arrays}
    require_same({n: a.shape for n, a in wanted.items()}, {n: a.shape for n, a in arrays.items()}, found.origin)
    return {name: _like(arrays[name], wanted[name], name, found.origin) for name in wanted}


def require_same(wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]], origin: str) -> None:
    """Raise `UsageError`, with lists, unless the model's names and shapes are those that were found."""
    missing = [name for name in wanted if name not in found]
    unexpected = [name for name in found if name not in wanted]
    shapes = [
        f"{name} {list(found[name])} where the model has {list(shape)}"
        for name, shape in wanted.items()
        if name in found and found[name] != shape
    ]
    parts = {"Missing": missing, "unexpected": unexpected, "of another shape": shapes}
    listed = "; ".join(f"{what}: {some(names)}" for what, names in parts.items() if names)
    if listed:
        raise UsageError(f"The weights in {origin} do not fit the model.", f"{listed[0].upper()}{listed[1:]}.", _HINT)


def some(names: list[str]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def _translated(found: NamedWeights, wanted: Mapping[str, NDArray[Any]], framework: str) -> Arrays:
    if found.framework == framework:
        return without_wrappers(found.arrays, wanted) if framework == "torch" else found.arrays
    if framework == "torch":
        return to_torch(found.arrays)
    return to_keras(without_wrappers(found.arrays), wanted)


def _like(array: NDArray[Any], wanted: NDArray[Any], name: str, origin: str) -> NDArray[Any]:
    if array.dtype.kind != wanted.dtype.kind:
        raise UsageError(
            f"{name} in {origin} is {array.dtype}.", f"The model keeps {wanted.dtype}.", "save it as such numbers."
        )
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise UsageError(f"{name} in {origin} holds NaN.", "Every loss would be NaN.", "use weights from before.")
    return array.astype(wanted.dtype)
