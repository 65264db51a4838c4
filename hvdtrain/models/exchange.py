"""Weights of one architecture from torch to Keras and back, as named numpy arrays. Imports no framework.

Both models must name their layers alike, as `resnet18` to `resnet152`, the small network of `digits` and `mnist`, and
the transformer of `text` do: a layer "layer1.0.conv1" has the torch weight "layer1.0.conv1.weight" and the Keras
variable "layer1.0.conv1/kernel".

    Keras                          torch                    axes
    kernel of a convolution        weight                   [H, W, in, out] is [out, in, H, W]
    kernel of a dense layer        weight                   [in, out] is [out, in]
    embeddings                     weight                   the same
    gamma, beta                    weight, bias             the same
    bias                           bias                     the same
    moving_mean, moving_variance   running_mean, running_var   the same
    -                              num_batches_tracked      left out; 0 on the way back: it counts batches, for
                                                            BatchNorm without a momentum, which none of these is
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hvdtrain.errors import UsageError

Weights = Mapping[str, NDArray[Any]]

_SUFFIXES: Final = {
    "kernel": "weight",
    "embeddings": "weight",
    "gamma": "weight",
    "beta": "bias",
    "bias": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
_TO_TORCH: Final = {4: (3, 2, 0, 1), 2: (1, 0)}  # axes of a kernel by its dimensions
_TO_KERAS: Final = {4: (2, 3, 1, 0), 2: (1, 0)}
COUNTER: Final = "num_batches_tracked"
LISTED: Final = 20


def to_torch(keras_weights: Weights) -> dict[str, NDArray[Any]]:
    """A state_dict of arrays from Keras variables by path.

    Raises `UsageError`: a variable is of a layer that torch has no counterpart of.
    """
    converted = {}
    for path, array in keras_weights.items():
        layer, _, kind = path.rpartition("/")
        converted[torch_name(path)] = _turned(array, kind, _TO_TORCH)
        if kind == "moving_mean":
            converted[f"{layer}.{COUNTER}"] = np.zeros((), np.int64)
    return converted


def to_keras(torch_weights: Weights, paths: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Arrays for the Keras variables `paths` from a state_dict.

    Raises `UsageError`: the two models do not name the same weights.
    """
    named = {path: torch_name(path) for path in paths}
    unused = [n for n in torch_weights if n not in set(named.values()) and not n.endswith(f".{COUNTER}")]
    missing = [name for name in named.values() if name not in torch_weights]
    if unused or missing:
        raise UsageError(
            f"The two models differ: {some(missing)} only in Keras, {some(unused)} only in torch.",
            "Weights can be exchanged between equal architectures only.",
            "build both models with the same name and arguments.",
        )
    return {path: _turned(torch_weights[name], path.rpartition("/")[2], _TO_KERAS) for path, name in named.items()}


def torch_name(path: str) -> str:
    """The name in a state_dict of the weight that is the Keras variable `path`.

    Raises `UsageError`: torch has no counterpart.
    """
    layer, _, kind = path.rpartition("/")
    if kind not in _SUFFIXES:
        raise UsageError(
            f"The Keras variable {path!r} has no counterpart in torch.",
            f"Known are {', '.join(_SUFFIXES)}.",
            "exchange models that both frameworks have: resnet18 to resnet152, cnn, and the text task's.",
        )
    return f"{layer}.{_SUFFIXES[kind]}"


def _turned(array: NDArray[Any], kind: str, axes: Mapping[int, tuple[int, ...]]) -> NDArray[Any]:
    return np.ascontiguousarray(array.transpose(axes[array.ndim])) if kind == "kernel" else array


def some(names: list[str]) -> str:
    """The first `LISTED` of them, and how many more there are."""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return (", ".join(names[:LISTED]) or "nothing") + more
