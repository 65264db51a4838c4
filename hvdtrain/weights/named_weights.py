"""Weights as named arrays, in the names and axes of one of the two frameworks."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any, Final, Literal

from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
Framework = Literal["torch", "tensorflow"]

_WRAPPERS: Final = ("module.", "_orig_mod.")
"""What DataParallel and DistributedDataParallel, and torch.compile, put before the name of every weight."""


@dataclass(frozen=True)
class NamedWeights:
    """Weights that were read.

    Attributes:
        arrays: by the names of `framework`: those of a torch state_dict ("conv1.weight"), or paths of Keras variables
            ("conv1/kernel"), with axes as that framework keeps them.
        framework: whose names these are.
        origin: where they came from, for messages.
    """

    arrays: Arrays
    framework: Framework
    origin: str


def without_wrappers(arrays: Arrays, wanted: Container[str] = ()) -> Arrays:
    """`arrays` of torch without the prefixes of wrapper modules, as long as no name is in `wanted` as it is."""
    while arrays and not any(name in wanted for name in arrays):
        prefix = next((p for p in _WRAPPERS if all(name.startswith(p) for name in arrays)), None)
        if prefix is None:
            break
        arrays = {name.removeprefix(prefix): array for name, array in arrays.items()}
    return arrays
