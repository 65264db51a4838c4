"""What the catalog and the reader need to know of a file format: the seam where a new format fits in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class RecordIndex(NamedTuple):
    """Where the records of one file are, in file order.

    Attributes:
        offsets: int64[n], first byte of each payload.
        lengths: int64[n], payload bytes.
        crcs: uint32[n], each payload's checksum as stored in the file.
    """

    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    crcs: NDArray[np.uint32]


class RecordFormat(Protocol):
    """A file of framed, checksummed records that can be read at random."""

    @property
    def name(self) -> str:
        """Name of the format, as stored in saved catalogs."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """File name endings that mark this format inside a folder."""

    @property
    def header_bytes(self) -> int:
        """Bytes between the start of a record's frame and its payload."""

    @property
    def footer_bytes(self) -> int:
        """Bytes between the end of a payload and the next frame."""

    def scan(self, path: str, check_data: bool) -> RecordIndex:
        """Find all records of a file.

        Raises:
            MissingDataError: the file cannot be opened or is empty.
            CorruptRecordError: the framing is damaged, or with `check_data` a payload is.
        """

    def checksums(self, payloads: Sequence[bytes]) -> NDArray[np.uint32]:
        """Return uint32[len(payloads)], comparable with `RecordIndex.crcs`."""
