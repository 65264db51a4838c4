"""The image records that MXNet's im2rec packs into RecordIO payloads.

A payload is `u32le flag | f32le label | u64le id | u64le id2 | flag x f32le labels | image file`: with flag 0 the label
is the one in the header, otherwise there are `flag` labels behind it. Source: python/mxnet/recordio.py, pack().
"""

import struct
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import ExampleError

_HEADER: Final = struct.Struct("<IfQQ")


class ImageRecord(NamedTuple):
    """One image with its labels.

    Attributes:
        labels: float32[n]; n is 1 for a label in the header.
        image_id: the image's number.
        image_id2: the second number, 0 where unused.
        image: the encoded image file.
    """

    labels: NDArray[np.float32]
    image_id: int
    image_id2: int
    image: bytes


def decode_image_record(payload: bytes) -> ImageRecord:
    """Split a payload into header, labels and image; the image is not decoded.

    Raises ExampleError (the payload is shorter than its header says).
    """
    if len(payload) < _HEADER.size:
        raise _too_short(payload, _HEADER.size)
    flag, label, image_id, image_id2 = _HEADER.unpack_from(payload)
    start = _HEADER.size + 4 * flag
    if len(payload) < start:
        raise _too_short(payload, start)
    if flag == 0:
        labels = np.array([label], np.float32)
    else:
        labels = np.frombuffer(payload, "<f4", flag, _HEADER.size).astype(np.float32)
    return ImageRecord(labels, image_id, image_id2, payload[start:])


def _too_short(payload: bytes, needed: int) -> ExampleError:
    return ExampleError(
        f"A payload of {len(payload)} bytes is not an image record.",
        f"Its header and labels alone take {needed} bytes.",
        "decode these records with the function that fits how they were written.",
    )
