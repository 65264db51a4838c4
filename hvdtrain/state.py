"""Named arrays: the state of training as it is copied, saved, broadcast and compared."""

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
    return zlib.crc32(bytes_of(array).data, zlib.crc32(f"{name} {array.dtype.str} {array.shape}\n".encode()))


def weights_digest(state: Mapping[str, NDArray[Any]]) -> int:
    """Of all weights and buffers in `state`, whatever their order: 62 bits, made of their checksums."""
    checksums = sorted(f"{name} {array_checksum(name, array)}" for name, array in weights_of(state).items())
    return int.from_bytes(hashlib.blake2b("\n".join(checksums).encode(), digest_size=8).digest()) >> 2


def require_fit(
    saved: Mapping[str, Any],
    needed: Mapping[str, tuple[int, ...]],
    fact: str,
    hint: str = "build the model with the options it was saved with, or train from the start with --resume never.",
) -> None:
    """Raise `UsageError`, with `fact` and the names, unless the saved arrays have the needed names and shapes."""
    wrong = sorted(saved.keys() ^ needed.keys())
    wrong += sorted(n for n in saved.keys() & needed.keys() if tuple(saved[n].shape) != needed[n])
    if wrong:
        some = ", ".join(wrong[:5]) + (" …" if len(wrong) > 5 else "")
        raise UsageError(fact, f"Missing, unexpected or of another shape: {some}.", hint)
