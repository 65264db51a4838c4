"""The bytes around a TFRecord payload.

A record is `u64le length | u32le masked crc32c(the 8 length bytes) | payload | u32le masked crc32c(payload)`; masking
is rotation by 15 bits plus a constant, so that a checksum of data that holds checksums stays strong. Source:
https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details and tensorflow/core/lib/hash/crc32c.h.
"""

import functools
import struct
from collections.abc import Sequence
from typing import Final

import google_crc32c
import numpy as np
from numpy.typing import NDArray

HEADER: Final = struct.Struct("<QI")
FOOTER: Final = struct.Struct("<I")
_LENGTH: Final = struct.Struct("<Q")
_MASK_DELTA: Final = 0xA282EAD8


def masked_crc(data: bytes) -> int:
    """CRC-32C of `data`, masked as TFRecord stores it."""
    crc = google_crc32c.value(data)
    return int(((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF)


@functools.lru_cache(maxsize=65536)
def length_crc(length: int) -> int:
    """Masked CRC of a record's 8 length bytes; cached, for the records of a data set share few lengths."""
    return masked_crc(_LENGTH.pack(length))


def payload_crcs(payloads: Sequence[bytes]) -> NDArray[np.uint32]:
    """Masked CRCs of many payloads, uint32[len(payloads)]; the masking is vectorised."""
    crcs = np.fromiter(map(google_crc32c.value, payloads), np.uint32, len(payloads))
    return ((crcs >> np.uint32(15)) | (crcs << np.uint32(17))) + np.uint32(_MASK_DELTA)
