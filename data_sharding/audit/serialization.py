"""The bytes of a `CoverageAudit`, as ranks send them to each other and runs keep them.

8 bytes   "dscover" and the version, 1
5 u64le   N; lengths of the lists of ids read (0 in form "bitmap"), read again, excluded; length of the body
u8        form of what was read: 0 ids, 1 bitmap
body      zlib: read, read again, excluded; a list of ids, ascending, is its first id and the differences, in
          the smallest of u8, u16le, u32le, u64le that holds N
16 bytes  BLAKE2b of all before
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_sharding.audit.bitmap import Bitmap
from data_sharding.errors import CatalogError

_MAGIC: Final = b"dscover\x01"
_HEADER: Final = struct.Struct("<8s4QB")
_DIGEST_BYTES: Final = 16
# Level 1: bitmaps of a shuffled epoch hardly compress, whatever the effort.
_LEVEL: Final = 1


class StoredAudit(NamedTuple):
    """Records read, int64[k] readings beyond each record's first, and int64[k] records excluded; both ascend."""

    read: Bitmap
    repeats: NDArray[np.int64]
    excluded: NDArray[np.int64]


def encode(audit: StoredAudit) -> bytes:
    """Write an audit to bytes; equal audits give equal bytes on one machine, where zlib is the same."""
    kind, count = _id_type(audit.read.n), len(audit.read)
    as_bitmap = count * kind.itemsize >= len(audit.read.bits)
    first = audit.read.bits.tobytes() if as_bitmap else _packed(np.concatenate([*audit.read.ids()]), kind)
    body = zlib.compress(first + _packed(audit.repeats, kind) + _packed(audit.excluded, kind), _LEVEL)
    counts = (0 if as_bitmap else count, len(audit.repeats), len(audit.excluded))
    message = _HEADER.pack(_MAGIC, audit.read.n, *counts, as_bitmap) + body
    return message + _checksum(message)


def decode(data: bytes) -> StoredAudit:
    """Read an audit from bytes. Raises CatalogError if they are damaged, or no audit of this version."""
    if data[: len(_MAGIC)] != _MAGIC:
        raise _damaged(f"they begin with {data[: len(_MAGIC)]!r}, not with {_MAGIC!r}")
    message, checksum = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if len(message) < _HEADER.size or checksum != _checksum(message):
        raise _damaged("they do not match their checksum")
    _, n, *counts, as_bitmap = _HEADER.unpack_from(message)
    kind, bitmap_bytes = _id_type(n), (n + 7) // 8 if as_bitmap else 0
    body = zlib.decompress(message[_HEADER.size :])
    if len(body) != bitmap_bytes + sum(counts) * kind.itemsize:
        raise _damaged("their header contradicts their length")
    lists = _unpacked(body[bitmap_bytes:], kind, counts)
    read = Bitmap(n)
    if as_bitmap:
        read.bits[:] = np.frombuffer(body, np.uint8, bitmap_bytes)
    else:
        read.add(lists[0])
    return StoredAudit(read, lists[1], lists[2])


def _id_type(n: int) -> np.dtype[np.unsignedinteger]:
    return np.min_scalar_type(n).newbyteorder("<")


def _packed(ids: NDArray[np.int64], kind: np.dtype[np.unsignedinteger]) -> bytes:
    return np.diff(ids, prepend=0).astype(kind).tobytes()


def _unpacked(body: bytes, kind: np.dtype[np.unsignedinteger], counts: list[int]) -> list[NDArray[np.int64]]:
    differences = np.frombuffer(body, kind).astype(np.int64)
    return [np.cumsum(part) for part in np.split(differences, np.cumsum(counts)[:-1])]


def _checksum(message: bytes) -> bytes:
    return hashlib.blake2b(message, digest_size=_DIGEST_BYTES).digest()


def _damaged(reason: str) -> CatalogError:
    return CatalogError(
        "The bytes are not a whole coverage audit.", f"In fact {reason}.", "take them from their source again."
    )
