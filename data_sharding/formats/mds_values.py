"""Values of a sample of MDS (mosaicml-streaming): how each column's bytes become a feature."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Value = bytes | str | int | float | NDArray[Any]
Decoder = Callable[[bytes], Value]

_SCALARS: Final = (
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
)
_ARRAY_TYPES: Final = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
    64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip
"""By the byte that says it in the file."""


def decoder_of(encoding: str) -> Decoder | None:
    """What makes a value of bytes that were written with this encoding; None for one that cannot be read here.

    Text and numbers become such, arrays keep dtype and shape; JSON and pictures (JPEG, PNG) stay the bytes they are.
    """
    name, _, arguments = encoding.partition(":")
    if name in ("bytes", "jpeg", "jpeg_array", "jpegarray", "png", "json"):
        return bytes
    if name == "str":
        return bytes.decode
    if name == "int":
        return functools.partial(_scalar, np.dtype("<i8"))
    if name in _SCALARS:
        return functools.partial(_scalar, np.dtype(name).newbyteorder("<"))
    if name == "str_int":
        return lambda content: int(content.decode())
    if name == "str_float":  # an array, which `example.encode` keeps as float64
        return lambda content: np.array(float(content.decode()))
    if is_array(encoding):
        dtype, _, shape = arguments.partition(":")
        return functools.partial(_array, dtype, tuple(map(int, shape.split(","))) if shape else None)
    return None


def is_array(encoding: str) -> bool:
    return encoding.partition(":")[0] == "ndarray"


def may_have_dimensions(encoding: str) -> bool:
    """Whether arrays of this encoding may have several, which `with_shapes` tells."""
    _, _, shape = encoding.partition(":")[2].partition(":")
    return is_array(encoding) and (not shape or "," in shape)


def with_shapes(values: Mapping[str, Value]) -> dict[str, Value]:
    """With "NAME.shape" beside each array of several dimensions, which a tf.train.Example keeps flat."""
    shapes = {
        f"{name}.shape": np.array(value.shape, np.int64)
        for name, value in values.items()
        if isinstance(value, np.ndarray) and value.ndim > 1
    }
    return {**values, **shapes}


def _scalar(dtype: np.dtype[Any], content: bytes) -> NDArray[Any]:
    return np.frombuffer(content, dtype)


def _array(dtype: str, shape: tuple[int, ...] | None, content: bytes) -> NDArray[Any]:
    """Where the encoding gives no dtype, a byte does; where it gives no shape, a byte has the number of dimensions and,
    in its lowest two bits, the width of the numbers that follow: 1, 2, 4 or 8 bytes."""
    at = 0
    if not dtype:
        dtype, at = _ARRAY_TYPES[content[0]], 1
    if shape is None:
        dimensions, width = content[at] >> 2, 1 << (content[at] & 3)
        end = at + 1 + dimensions * width
        shape = tuple(np.frombuffer(content[at + 1 : end], f"<u{width}").tolist())
        at = end
    return np.frombuffer(content[at:], np.dtype(dtype).newbyteorder("<")).reshape(shape)
