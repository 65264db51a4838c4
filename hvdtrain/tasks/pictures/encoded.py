"""The bytes of a picture file and its label in one record, for each way to keep photos."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from data_sharding import RecordBatch
from data_sharding.example import Feature, decode
from data_sharding.formats import tar_members

FROM_ONE: Final = "image/class/label"
"""In TensorFlow's own ImageNet TFRecords labels begin at 1; 0 was kept for a background class. Source:
build_imagenet_data.py in tensorflow/models, research/slim/datasets."""

_IMAGE_FEATURES: Final = ("image/encoded", "image", "jpg", "jpeg", "png")
_LABEL_FEATURES: Final = (FROM_ONE, "label", "cls")
_IMAGE_MEMBERS: Final = ("jpg", "jpeg", "png", "webp", "ppm", "bmp")


class NotAPictureError(ValueError):
    """A record does not hold a picture and a label; the message says what it holds."""


class Encoded(NamedTuple):
    """The bytes of a picture file, its label as stored, and the name that it had in the record."""

    content: bytes
    label: int
    named: str = ""


def encoded_pictures(records: RecordBatch, format_name: str) -> list[Encoded]:
    """Each record's picture file and label.

    Args:
        format_name: "image_folder", "tar" (members jpg, png … and cls), or "tfrecord" (Examples with image/encoded and
            image/class/label, or image and label, as `hvdtrain shard convert` writes them).

    Raises:
        NotAPictureError: with the row of the record as its second argument.
    """
    pictures = []
    for row, payload in enumerate(records):
        try:
            pictures.append(_encoded(payload, records, row, format_name))
        except NotAPictureError as error:
            raise NotAPictureError(error.args[0], row) from error
    return pictures


def _encoded(payload: bytes, records: RecordBatch, row: int, format_name: str) -> Encoded:
    if records.labels is not None:
        return Encoded(payload, int(records.labels[row]))
    if format_name == "tar":
        members = tar_members(payload)
        member = next((name for name in _IMAGE_MEMBERS if name in members), None)
        if member is None or "cls" not in members:
            raise NotAPictureError(f"has the members {', '.join(members)}, not one of {_IMAGE_MEMBERS} and cls")
        return Encoded(members[member], _number(members["cls"]), "cls")
    features = decode(payload)
    name = next((name for name in _IMAGE_FEATURES if name in features), None)
    label = next((name for name in _LABEL_FEATURES if name in features), None)
    if name is None or label is None:
        raise NotAPictureError(
            f"has the features {', '.join(sorted(features))}, not {_IMAGE_FEATURES[0]} and {FROM_ONE}, or image "
            "and label"
        )
    return Encoded(_only_bytes(name, features[name]), _label(features[label]), label)


def _only_bytes(name: str, values: Feature) -> bytes:
    if isinstance(values, list) and len(values) == 1:
        return values[0]
    raise NotAPictureError(f"has a feature {name!r} that is not the bytes of one picture file")


def _label(values: Feature) -> int:
    if isinstance(values, np.ndarray) and values.dtype == np.int64 and values.size == 1:
        return int(values[0])
    if isinstance(values, list) and len(values) == 1:
        return _number(values[0])
    raise NotAPictureError("has a label that is not one integer")


def _number(text: bytes) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise NotAPictureError(f"has the label {text[:40]!r}, which is not an integer") from error
