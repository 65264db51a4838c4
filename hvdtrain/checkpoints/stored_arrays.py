"""Arrays as safetensors can hold them, and back. A kind that it cannot hold is the end of an array's name, after "#".

"model/mask#bfloat16" are the bits of bfloat16 numbers as uint16, "model/phase#complex64" real and imaginary parts
along one more axis, "optimizer/#numbers#text" the bytes of a text.
"""

import re
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hvdtrain.named_arrays import State, bits_dtype, name_of_bits

_TEXT: Final = "text"
_COMPLEX: Final[dict[str, type[np.floating[Any]]]] = {"complex64": np.float32, "complex128": np.float64}
_KINDS: Final = re.compile(r"(.+)#(text|complex64|complex128|complex32|bfloat16|float[468]_\w+|bits\w+|u?int[1-7])")


def stored(state: State) -> State:
    """The arrays by names of their kinds, contiguous: safetensors takes an array's memory as it is."""
    return dict(_stored(name, array) for name, array in state.items())


def restored(arrays: State) -> State:
    """What `stored` was given."""
    return dict(_restored(name, array) for name, array in arrays.items())


def _stored(name: str, array: NDArray[Any]) -> tuple[str, NDArray[Any]]:
    if not array.flags.c_contiguous:
        array = array.copy(order="C")
    if array.dtype.kind == "S":
        return f"{name}#{_TEXT}", np.frombuffer(array.item(), np.uint8)
    if array.dtype.name in _COMPLEX:
        parts = array.reshape(-1).view(_COMPLEX[array.dtype.name]).reshape(*array.shape, 2)
        return f"{name}#{array.dtype.name}", parts
    bits = name_of_bits(array.dtype)
    return (name, array) if bits is None else (f"{name}#{bits}", array.view(array.dtype[0]))


def _restored(name: str, array: NDArray[Any]) -> tuple[str, NDArray[Any]]:
    match = _KINDS.fullmatch(name)
    if match is None:
        return name, array
    name, kind = match.groups()
    if kind == _TEXT:
        return name, np.asarray(array.tobytes())
    if kind in _COMPLEX:
        return name, array.reshape(-1).view(kind).reshape(array.shape[:-1])
    return name, array.view(bits_dtype(kind, array.dtype.itemsize))
