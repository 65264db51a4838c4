"""Data files compressed as a whole with gzip: told from others, refused for random access, and expanded.

A gzip stream can only be read from its start, so no record in it can be found at random. Converting reads it once, in
sequence, into a temporary file; gzip's own CRC-32 is checked on the way, the records' checksums afterwards.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Final

from data_sharding.errors import CorruptRecordError
from data_sharding.formats.tfrecord_framing import HEADER, length_crc

GZIP_MAGIC: Final = b"\x1f\x8b"
_CHUNK_BYTES: Final = 1 << 20


def gzip_refused(path: str) -> CorruptRecordError:
    """The error for a compressed file that should be read at random."""
    return CorruptRecordError(
        f"{path} is compressed with gzip, from byte offset 0 on.",
        "A gzip stream allows no random access, so its records cannot be indexed.",
        f"rewrite it once with `hvdtrain shard convert {path} FOLDER`, or decompress it.",
        path=path,
        offset=0,
    )


def is_gzip(path: str) -> bool:
    """Whether a local file is compressed; a TFRecord file whose first length begins like gzip is told apart by its CRC.

    Raises:
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        head = file.read(HEADER.size)
    if not head.startswith(GZIP_MAGIC):
        return False
    if len(head) < HEADER.size:
        return True
    length, stored = HEADER.unpack(head)
    return bool(stored != length_crc(length))


def expand_gzip(path: str, target: Path) -> None:
    """Decompress a local file, with flat memory. `target` must not exist.

    Raises:
        CorruptRecordError: the stream is damaged or cut short; its offset is the number of bytes expanded till then.
    """
    expanded = 0
    with open(target, "xb") as plain, gzip.open(path, "rb") as stream:
        try:
            while chunk := stream.read1(_CHUNK_BYTES):  # `read` would lose what precedes the damage
                expanded += plain.write(chunk)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise CorruptRecordError(
                f"The gzip stream of {path} is damaged after {expanded} bytes of content.",
                f"It cannot be expanded any further: {error}.",
                path=path,
                offset=expanded,
            ) from error
