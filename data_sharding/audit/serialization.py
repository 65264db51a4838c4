"""A set of record ids, and the bytes of a `CoverageAudit`, as ranks send them to each other and runs keep them.

8 bytes   "dscover" and the version, 1
5 u64le   N; lengths of the lists of ids read (0 in form "bitmap"), read again, excluded; length of the body
u8        form of what was read: 0 ids, 1 bitmap
body      zlib: read, read again, excluded; a list of ids, ascending, is its first id and the differences, in
          the smallest of u8, u16le, u32le, u64le that holds N
16 bytes  BLAKE2b of all before
"""

import hashlib
import itertools
import struct
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import CatalogError

_MAGIC: Final = b"dscover\x01"
_HEADER: Final = struct.Struct("<8s4QB")
_DIGEST_BYTES: Final = 16
_BLOCK_BYTES: Final = 1 << 17  # of the bitmap are unpacked together: 2**20 ids, 8 MiB of them at most
_LEVEL: Final = 1  # bitmaps of a shuffled epoch hardly compress, whatever the effort
_MOST_RATIO: Final = 1100  # of zlib's compression, which has 1,032 at most


class Bitmap:
    """Ids of [0, n) that are in the set: bit i % 8 of `bits[i // 8]`, uint8[ceil(n / 8)]; bits from n on are 0."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.bits = np.zeros((n + 7) // 8, np.uint8)

    def __len__(self) -> int:
        return int(np.bitwise_count(self.bits).sum(dtype=np.int64))

    def has(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the ids int64[k] are in the set, bool[k]."""
        shifted: NDArray[np.uint8] = self.bits[ids >> 3] >> (ids & 7).astype(np.uint8)
        return (shifted & 1).astype(np.bool_)

    def add(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Put in ids int64[k]; return those that were there, and all but the first of those that repeat, ascending."""
        # Many new ids need no sorting; beside them n bytes weigh little: at most twice as much as the ids.
        if 16 * len(ids) >= self.n and self._add_if_new(ids):
            return ids[:0]
        ids = np.sort(ids)
        again = self.has(ids)
        again[1:] |= ids[1:] == ids[:-1]
        if ids.size:
            # One store for each byte: stores to the same byte in one numpy call would overwrite each other.
            places = ids >> 3
            begins = np.flatnonzero(np.diff(places, prepend=-1))
            masks = np.left_shift(1, ids & 7).astype(np.uint8)
            self.bits[places[begins]] |= np.bitwise_or.reduceat(masks, begins)
        return ids[again]

    def words(self) -> NDArray[np.int64]:
        """A copy of the bits, 64 in each int64[ceil(n / 64)]."""
        padded = np.zeros((self.n + 63) // 64 * 8, np.uint8)
        padded[: len(self.bits)] = self.bits
        return padded.view(np.int64)

    @classmethod
    def of_words(cls, words: NDArray[np.int64], n: int) -> "Bitmap":
        bitmap = cls(n)
        bitmap.bits[:] = words.view(np.uint8)[: len(bitmap.bits)]
        return bitmap

    def _add_if_new(self, ids: NDArray[np.int64]) -> bool:
        marks = np.zeros(self.n, np.bool_)
        marks[ids] = True
        bits = np.packbits(marks, bitorder="little")
        new = int(np.bitwise_count(bits).sum(dtype=np.int64)) == len(ids) and not np.bitwise_and(bits, self.bits).any()
        if new:
            self.bits |= bits
        return new

    def ids(self, inside: bool = True) -> Iterator[NDArray[np.int64]]:
        """The ids in the set, or those outside, ascending, in blocks int64[...] of a few MiB."""
        for begin in range(0, len(self.bits), _BLOCK_BYTES):
            count = min(8 * _BLOCK_BYTES, self.n - 8 * begin)
            unpacked = np.unpackbits(self.bits[begin : begin + _BLOCK_BYTES], count=count, bitorder="little")
            yield np.flatnonzero(unpacked == inside) + 8 * begin


class Decoded(NamedTuple):
    """What bytes of an audit hold, before a bitmap of N records is made of it."""

    n: int
    bits: NDArray[np.uint8] | None  # of `Bitmap`; None: `ids` has what was read
    ids: NDArray[np.int64]  # ascending
    repeats: NDArray[np.int64]
    excluded: NDArray[np.int64]

    def bitmap(self) -> Bitmap:
        read = Bitmap(self.n)
        if self.bits is None:
            read.add(self.ids)
        else:
            read.bits[:] = self.bits
        return read


def encode(read: Bitmap, repeats: NDArray[np.int64], excluded: NDArray[np.int64]) -> bytes:
    """Write an audit to bytes; equal audits give equal bytes on one machine, where zlib is the same.

    `repeats` are the int64[k] readings beyond each record's first; they and int64[k] `excluded` ascend.
    """
    kind, count = _id_type(read.n), len(read)
    as_bitmap = count * kind.itemsize >= len(read.bits)
    first = read.bits.tobytes() if as_bitmap else _packed(np.concatenate([*read.ids()]), kind)
    body = zlib.compress(first + _packed(repeats, kind) + _packed(excluded, kind), _LEVEL)
    counts = (0 if as_bitmap else count, len(repeats), len(excluded))
    message = _HEADER.pack(_MAGIC, read.n, *counts, as_bitmap) + body
    return message + _checksum(message)


def decode(data: bytes, records: int | None) -> Decoded:
    """What `encode` was given; `records`: what N has to be, so that it takes no more memory than that, and what the
    bytes hold of records that were read again, which may be any number of times.

    Raises CatalogError if they are damaged, no audit of this version, or of another N.
    """
    if data[: len(_MAGIC)] != _MAGIC:
        raise _damaged(f"they begin with {data[: len(_MAGIC)]!r}, not with {_MAGIC!r}")
    message, checksum = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if len(message) < _HEADER.size or checksum != _checksum(message):
        raise _damaged("they do not match their checksum")
    _, n, *counts, as_bitmap = _HEADER.unpack_from(message)
    kind, bitmap_bytes = _id_type(n), (n + 7) // 8 if as_bitmap else 0
    if records is not None and (n != records or max(counts[0], counts[2]) > records):
        raise _damaged(f"they are of {n} records, not of {records}")
    expected = bitmap_bytes + sum(counts) * kind.itemsize
    if expected > _MOST_RATIO * len(message):
        raise _damaged("their header contradicts their length")
    try:
        body = zlib.decompressobj().decompress(message[_HEADER.size :], expected + 1)
    except (zlib.error, OverflowError) as error:
        raise _damaged(f"they cannot be decompressed: {error}") from error
    if len(body) != expected:
        raise _damaged("their header contradicts their length")
    differences = np.frombuffer(body[bitmap_bytes:], kind).astype(np.int64)
    begins = [0, counts[0], counts[0] + counts[1], sum(counts)]
    lists = [differences[begin:end].cumsum() for begin, end in itertools.pairwise(begins)]
    return Decoded(n, np.frombuffer(body, np.uint8, bitmap_bytes) if as_bitmap else None, *lists)


def _id_type(n: int) -> np.dtype[np.unsignedinteger]:
    return np.min_scalar_type(n).newbyteorder("<")


def _packed(ids: NDArray[np.int64], kind: np.dtype[np.unsignedinteger]) -> bytes:
    return np.diff(ids, prepend=0).astype(kind).tobytes()


def _checksum(message: bytes) -> bytes:
    return hashlib.blake2b(message, digest_size=_DIGEST_BYTES).digest()


def _damaged(reason: str) -> CatalogError:
    return CatalogError(
        "The bytes are not a whole coverage audit.", f"In fact {reason}.", "take them from their source again."
    )
