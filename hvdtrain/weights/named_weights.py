"""Weights as named arrays, and fitted to a model: in its framework's names and axes, complete, each of its shape."""

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from hvdtrain.errors import UsageError
from hvdtrain.models.exchange import COUNTER, LISTED, some, to_keras, to_torch, torch_name

Arrays = dict[str, NDArray[Any]]
Framework = Literal["torch", "tensorflow"]
Versions = Mapping[str, Mapping[str, Any]]
"""The name of a torch module → what its class has saved of its version."""

_WRAPPERS: Final = ("module.", "_orig_mod.")
"""What DataParallel and DistributedDataParallel, and torch.compile, put before the name of every weight."""

_HINT: Final = "build the model with the --model and --task-args that they were trained with"


@dataclass(frozen=True)
class NamedWeights:
    """Weights that were read."""

    # by the names of `framework`: those of a torch state_dict ("conv1.weight"), or paths of Keras variables
    # ("conv1/kernel"), with axes as that framework keeps them
    arrays: Arrays
    framework: Framework  # whose names these are
    origin: str  # where they came from, for messages
    versions: Versions | None = None  # of torch's modules when the weights were saved; None: those of today


Naming = Callable[[Arrays, Versions | None, str, Collection[str]], Arrays]
"""(arrays, versions, origin, fresh) → the arrays by the names that a model has for them.

What the model has under several names gets all of these, unless all are in `fresh`, whose names get nothing else. What
it does not know, or has in another shape, stays as it is; what it misses is not in the result.
"""


def without_wrappers(arrays: Arrays, wanted: Container[str] = ()) -> Arrays:
    """`arrays` of torch without the prefixes of wrapper modules, as long as no name is in `wanted` as it is."""
    prefix = _wrappers_of(arrays, wanted)
    return {name.removeprefix(prefix): array for name, array in arrays.items()}


def _wrappers_of(names: Iterable[str], wanted: Container[str]) -> str:
    """The prefixes that all names share, such as "module._orig_mod."; "" where there are none."""
    inner, removed = list(names), ""
    while inner and not any(name in wanted for name in inner):
        prefix = next((p for p in _WRAPPERS if all(name.startswith(p) for name in inner)), None)
        if prefix is None:
            break
        inner, removed = [name.removeprefix(prefix) for name in inner], removed + prefix
    return removed


def _without_prefix(weights: NamedWeights, prefix: str) -> NamedWeights:
    """Modules have the names of their weights without what follows the last dot; the outermost one is ""."""
    arrays = {name.removeprefix(prefix): array for name, array in weights.arrays.items()}
    if weights.versions is None or not prefix:
        return replace(weights, arrays=arrays)
    inner = {f"{name}.": facts for name, facts in weights.versions.items() if f"{name}.".startswith(prefix)}
    return replace(
        weights, arrays=arrays, versions={n.removeprefix(prefix).removesuffix("."): f for n, f in inner.items()}
    )


class Exclusion:
    """The weights of a file that a training does not start from, as patterns of names name them.

    Args: `text`: patterns with commas between; None: nothing is excluded.
    """

    def __init__(self, text: str | None) -> None:
        self._patterns = [pattern.strip() for pattern in (text or "").split(",") if pattern.strip()]
        self._used: set[str] = set()

    def __contains__(self, name: str) -> bool:
        matching = [pattern for pattern in self._patterns if fnmatchcase(name, pattern)]
        self._used.update(matching)
        return bool(matching)

    def require_used(self, origin: str, names: Iterable[str]) -> None:
        """Raise `UsageError` for a pattern that none of the names asked for so far had: most likely a slip."""
        idle = [pattern for pattern in self._patterns if pattern not in self._used]
        if idle:
            raise UsageError(
                f"--init-weights-exclude names {', '.join(idle)}.",
                f"Neither the model nor {origin} has such a weight.",
                f"choose among {some(list(names))}.",
            )

    def hint(self, names: Sequence[str]) -> str:
        """The option that leaves `names` out too; "" where they are so many that it must be another model."""
        if len(names) > LISTED:
            return ""
        return f"--init-weights-exclude '{','.join([*self._patterns, *dict.fromkeys(names)])}'"


def fitted(
    weights: NamedWeights,
    wanted: Mapping[str, NDArray[Any]],
    framework: str,
    exclusion: Exclusion | None = None,
    naming: Naming | None = None,
) -> Arrays:
    """`weights` as the arrays that a model of `framework` has under the names of `wanted`, with the dtypes of `wanted`.

    BatchNorm's num_batches_tracked, which old state_dicts and Keras lack, stays as it is in `wanted`, and so does what
    `exclusion` names, by its name in either of the two, unless the model has it under another name too.

    Raises `UsageError`: names are missing or left over, which are listed; shapes or kinds of number differ; NaN.
    """
    excluded = exclusion or Exclusion(None)
    if weights.framework == "torch":
        names = [name for name in weights.arrays if name not in excluded]
        prefix = _wrappers_of(names, wanted if framework == "torch" else ())
        wrapped = [name.removeprefix(prefix) for name in weights.arrays if name in excluded]  # by its name in the file
        weights = _without_prefix(weights, prefix)
    else:
        wrapped = []
    arrays, origin = weights.arrays, weights.origin
    fresh = {_in_torch(name) for name in [*(name for name in [*arrays, *wanted] if name in excluded), *wrapped]}
    excluded.require_used(origin, wanted)
    kept = {name: array for name, array in wanted.items() if _in_torch(name) not in fresh}
    arrays = {name: array for name, array in arrays.items() if _in_torch(name) not in fresh}
    if weights.framework != framework:
        arrays = to_torch(arrays) if framework == "torch" else to_keras(arrays, kept)
    for name in arrays.keys() & kept.keys():
        _require_kind(arrays[name], kept[name], name, origin)
    if naming is not None:
        arrays = naming(arrays, weights.versions, origin, wanted.keys() - kept.keys())
        kept = {name: array for name, array in wanted.items() if name in kept or name in arrays}
    counters = {name: array for name, array in kept.items() if name.rpartition(".")[2] == COUNTER}
    arrays = {**{name: array for name, array in counters.items() if name not in arrays}, **arrays}
    require_same({n: a.shape for n, a in kept.items()}, {n: a.shape for n, a in arrays.items()}, origin, exclusion)
    taken = {name: _like(arrays[name], wanted[name], name, origin) for name in kept}
    return {name: taken.get(name, array) for name, array in wanted.items()}


def require_same(
    wanted: Mapping[str, tuple[int, ...]],
    found: Mapping[str, tuple[int, ...]],
    origin: str,
    exclusion: Exclusion | None = None,
    called: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Raise `UsageError`, with lists, unless the model's names and shapes are those that were found.

    Args:
        exclusion: for the hint, where weights may be excluded.
        called: other names of some of these, for the hint.
    """
    missing = [name for name in wanted if name not in found]
    unexpected = [name for name in found if name not in wanted]
    other = [name for name, shape in wanted.items() if name in found and found[name] != shape]
    shapes = [f"{name} {list(found[name])} where the model has {list(wanted[name])}" for name in other]
    parts = {"Missing": missing, "unexpected": unexpected, "of another shape": shapes}
    listed = "; ".join(f"{what}: {some(names)}" for what, names in parts.items() if names)
    if listed:
        names = [called.get(name, name) for name in [*missing, *unexpected, *other]]
        option = exclusion.hint(names) if exclusion is not None else ""
        raise UsageError(
            f"The weights in {origin} do not fit the model.",
            f"{listed[0].upper()}{listed[1:]}.",
            f"{_HINT}, or keep these fresh: {option}." if option else f"{_HINT}.",
        )


def _in_torch(name: str) -> str:
    """What a weight is called in torch, where it has a counterpart: one name for both frameworks."""
    try:
        return torch_name(name)
    except UsageError:
        return name


def _require_kind(array: NDArray[Any], wanted: NDArray[Any], name: str, origin: str) -> None:
    """Floats stay floats; a truth value may be kept as a byte, as torch once did."""
    whole = array.dtype.kind in "biu" and wanted.dtype.kind in "biu"
    if array.dtype.kind != wanted.dtype.kind and not (whole and np.array_equal(array.astype(wanted.dtype), array)):
        raise UsageError(
            f"{name} in {origin} is {array.dtype}.", f"The model keeps {wanted.dtype}.", "save it as such numbers."
        )


def _like(array: NDArray[Any], wanted: NDArray[Any], name: str, origin: str) -> NDArray[Any]:
    _require_kind(array, wanted, name, origin)
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise UsageError(f"{name} in {origin} holds NaN.", "Every loss would be NaN.", "use weights from before.")
    return array.astype(wanted.dtype, copy=False)


def no_onnx(error: ImportError, framework: str) -> UsageError:
    """The error where a package is not installed by which a framework writes ONNX."""
    return UsageError(
        f"ONNX needs a package that is not installed: {error}.",
        f"{framework} writes ONNX by it.",
        "pip install 'hvdtrain[export]'.",
    )
