"""Numbers, texts and collections of them as one array of text, and back: what an optimizer or a module keeps.

JSON alone would make lists of tuples, and knows no arrays. So everything that JSON does not tell apart is an object
with one key, which says what it is. No pickle: reading a checkpoint must not run code.
"""

import base64
import json
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdtrain.named_arrays import dtype_of, dtype_text

ToArray = Callable[[Any], NDArray[Any] | None]
"""The array of a framework's tensor; None for anything else."""

FromArray = Callable[[NDArray[Any]], Any]
"""A framework's tensor of an array."""


class NotPlainError(Exception):
    """A value is, or contains, something else: `part`."""

    def __init__(self, part: object) -> None:
        super().__init__(type(part).__name__)
        self.part = part


def to_text(value: Any, to_array: ToArray) -> NDArray[Any]:
    """The value as an array of bytes, of shape [].

    Args: `value`: None, a bool, number, str, bytes or array, or a list, tuple, set, deque or dict of such; dicts of
        Python's own kinds stay what they are.

    Raises `NotPlainError`: it is none of these.
    """
    return np.asarray(json.dumps(_encoded(value, to_array)).encode())


def from_text(text: NDArray[Any], to_tensor: FromArray) -> Any:
    """The value of which `to_text` made `text`."""
    return _decoded(json.loads(text.item()), to_tensor)


def is_text(array: NDArray[Any]) -> bool:
    """Whether `to_text` made it."""
    return array.dtype.kind == "S"


def _encoded(value: Any, to_array: ToArray) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if kind is list:
        return [_encoded(part, to_array) for part in value]
    if kind in (tuple, set, frozenset):
        parts = value if kind is tuple else sorted(value, key=repr)  # the same text for equal sets
        return {kind.__name__: [_encoded(part, to_array) for part in parts]}
    if kind is deque:
        return {"deque": [value.maxlen, [_encoded(part, to_array) for part in value]]}
    if isinstance(value, dict):
        return _encoded_dict(value, to_array)
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        return {"scalar" if isinstance(value, np.generic) else "array": _encoded_array(np.asarray(value))}
    array = to_array(value)
    if array is None:
        raise NotPlainError(value)
    return {"tensor": _encoded_array(array)}


def _encoded_dict(value: dict[Any, Any], to_array: ToArray) -> dict[str, Any]:
    pairs = [[_encoded(key, to_array), _encoded(part, to_array)] for key, part in value.items()]
    factory = value.default_factory if isinstance(value, defaultdict) else None
    if isinstance(factory, type) and factory in _FACTORIES.values():
        return {"defaultdict": [factory.__name__, pairs]}
    return {type(value).__name__ if type(value) in (Counter, OrderedDict) else "dict": pairs}


def _encoded_array(array: NDArray[Any]) -> list[Any]:
    return [dtype_text(array.dtype), list(array.shape), base64.b64encode(array.tobytes()).decode()]


def _decoded(encoded: Any, to_tensor: FromArray) -> Any:
    if isinstance(encoded, list):
        return [_decoded(part, to_tensor) for part in encoded]
    if not isinstance(encoded, dict):
        return encoded
    ((kind, content),) = encoded.items()
    if kind in ("array", "scalar", "tensor"):
        dtype, shape, text = content
        array = np.frombuffer(base64.b64decode(text), dtype_of(dtype)).reshape(shape).copy()
        return to_tensor(array) if kind == "tensor" else array[()] if kind == "scalar" else array
    if kind == "defaultdict":
        return defaultdict(_FACTORIES[content[0]], _decoded(content[1], to_tensor))
    if kind == "dict":
        return {_decoded(key, to_tensor): _decoded(part, to_tensor) for key, part in content}
    if kind == "deque":
        return deque(_decoded(content[1], to_tensor), content[0])
    if kind == "bytes":
        return base64.b64decode(content)
    return _COLLECTIONS[kind](_decoded(content, to_tensor))


_COLLECTIONS: dict[str, Callable[[list[Any]], Any]] = {
    "complex": lambda parts: complex(*parts),
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "Counter": lambda pairs: Counter(dict(pairs)),
    "OrderedDict": OrderedDict,
}

_FACTORIES: dict[str, type] = {kind.__name__: kind for kind in (int, float, str, list, dict, set)}
"""Of a defaultdict. One with another factory comes back as a dict."""


def mapping_like(value: dict[Any, Any], parts: dict[Any, Any]) -> dict[Any, Any]:
    """`parts` in a mapping of the kind of `value`, where it is one of those that come back as they were."""
    if type(value) in (Counter, OrderedDict):
        return type(value)(parts)
    return defaultdict(value.default_factory, parts) if isinstance(value, defaultdict) else parts
