"""Named arrays: the state of training as it is copied, saved, broadcast and compared.

numpy does not know every type of number. An array of such numbers has a structured dtype of one field, which is named
after their type and has their bits: `[("bfloat16", "<u2")]`. Text is an array of shape [] of bytes.
"""

import hashlib
import zlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdtrain.errors import UsageError

State = dict[str, NDArray[Any]]
"""Named arrays. "model/…" are weights and buffers, "optimizer/…" the optimizer's slots."""

NO_STATE: Mapping[str, NDArray[Any]] = MappingProxyType({})


def bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    """A view of an array's bytes, in the order of its indices, or a copy where its memory has another order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def weights_of(state: Mapping[str, NDArray[Any]]) -> State:
    """The weights and buffers alone, "model/…"."""
    return {name: array for name, array in state.items() if name.startswith("model/")}


def array_checksum(name: str, array: NDArray[Any]) -> int:
    """CRC-32 over name, dtype, shape and bytes of an array.

    A CRC, since it is to be as fast as a copy: it finds drift and errors, which nobody has made to get past it. zlib
    releases Python's lock meanwhile.
    """
    return zlib.crc32(bytes_of(array).data, zlib.crc32(f"{name} {dtype_text(array.dtype)} {array.shape}\n".encode()))


def weights_digest(state: Mapping[str, NDArray[Any]]) -> int:
    """Of all weights and buffers in `state`, whatever their order: 62 bits, made of their checksums."""
    checksums = sorted(f"{name} {array_checksum(name, array)}" for name, array in weights_of(state).items())
    return int.from_bytes(hashlib.blake2b("\n".join(checksums).encode(), digest_size=8).digest()) >> 2


def require_fit(
    saved: Mapping[str, Any],
    needed: Mapping[str, tuple[int, ...]],
    fact: str,
    hint: str = "build the model with the options it was saved with, or start in another --output-dir.",
) -> None:
    """Raise `UsageError`, with `fact` and the names, unless the saved arrays have the needed names and shapes."""
    wrong = sorted(saved.keys() ^ needed.keys())
    wrong += sorted(n for n in saved.keys() & needed.keys() if tuple(saved[n].shape) != needed[n])
    if wrong:
        some = ", ".join(wrong[:5]) + (" …" if len(wrong) > 5 else "")
        raise UsageError(fact, f"Missing, unexpected or of another shape: {some}.", hint)


def bits_dtype(name: str, size: int) -> "np.dtype[Any]":
    """The dtype of an array of numbers that numpy does not know.

    Args:
        name: of their type, as "bfloat16".
        size: bytes of one of them.
    """
    return np.dtype([(name, f"<u{size}")])


def name_of_bits(dtype: "np.dtype[Any]") -> str | None:
    """The type of the numbers whose bits an array of this dtype has; None where numpy knows them."""
    return None if dtype.names is None else dtype.names[0]


def dtype_text(dtype: "np.dtype[Any]") -> str:
    """A text that tells every dtype of a state: "<f4", or "bfloat16:2"."""
    name = name_of_bits(dtype)
    return dtype.str if name is None else f"{name}:{dtype.itemsize}"


def dtype_of(text: str) -> "np.dtype[Any]":
    """The dtype of which `dtype_text` made `text`."""
    name, _, size = text.partition(":")
    return bits_dtype(name, int(size)) if size else np.dtype(text)


def as_numbers(array: NDArray[Any]) -> NDArray[Any]:
    """The array in a dtype with which numpy computes: bfloat16 is the upper half of a float32; others as they are."""
    if name_of_bits(array.dtype) != "bfloat16":
        return array
    return (array.view("<u2").astype("<u4") << 16).view(np.float32)


def like_numbers(array: NDArray[Any], dtype: "np.dtype[Any]") -> NDArray[Any]:
    """The numbers of `array` as `dtype`, which may be that of bfloat16: to the nearest, or the even one of two."""
    if name_of_bits(dtype) != "bfloat16":
        return array.astype(dtype)
    bits = np.ascontiguousarray(array, np.float32).view("<u4")
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16).astype("<u2")
    rounded[np.isnan(array)] = 0x7FC0
    return rounded.view(dtype).reshape(array.shape)
