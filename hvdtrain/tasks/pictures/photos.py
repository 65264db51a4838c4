"""From a record that holds a JPEG, PNG or other picture file to pixels of one size.

Which part of a photo a model sees is chosen as by torchvision's RandomResizedCrop, and its Resize and CenterCrop.
"""

import io
import math
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_sharding import RecordBatch
from data_sharding.example import Feature, decode
from data_sharding.formats import tar_members
from data_sharding.sample_random import SampleRandom
from hvdtrain.errors import UsageError

_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "PPM", "GIF", "TIFF")  # Pillow's others may start programs (EPS)
_MORE_THAN_BYTES = ("I", "F")  # modes of 16 and 32 bits, which Pillow would clip to 255
_STRIP = 8  # a photo that is longer in its short sides is cut first: resized whole, it could fill the memory
_ATTEMPTS: Final = 10
_AREA: Final = (0.08, 1.0)  # share of the photo: Szegedy et al. 2014 (arXiv:1409.4842, section 6)
_RATIO: Final = (3 / 4, 4 / 3)  # width to height
_MARGIN: Final = 256 / 224  # the shorter side of a photo to validate on, in sides of the crop

FROM_ONE: Final = "image/class/label"
"""In TensorFlow's own ImageNet TFRecords labels begin at 1; 0 was kept for a background class. Source:
build_imagenet_data.py in tensorflow/models, research/slim/datasets."""

_IMAGE_FEATURES: Final = ("image/encoded", "image", "jpg", "jpeg", "png")
_LABEL_FEATURES: Final = (FROM_ONE, "label", "cls")
_IMAGE_MEMBERS: Final = ("jpg", "jpeg", "png", "webp", "ppm", "bmp")


class BadPhotoError(ValueError):
    """A record holds no picture and label that can be used; the message says what it holds."""


def require_pillow() -> None:
    """Raise `UsageError` unless Pillow is installed."""
    try:
        import PIL.Image  # noqa: F401
    except ModuleNotFoundError as error:
        raise UsageError(
            "Pillow is not installed.", "It decodes JPEGs.", "pip install 'hvdtrain[pictures]'."
        ) from error


def encoded_picture(records: RecordBatch, row: int, format_name: str) -> tuple[bytes, int, str]:
    """The bytes of a record's picture file, its label as stored, and the name that the label had in the record.

    `format_name`: "image_folder", "tar" (members jpg, png … and cls), or "tfrecord" (Examples with image/encoded and
    image/class/label, or image and label, as `hvdtrain shard convert` writes them). Raises `BadPhotoError`: the record
    has no such members or features.
    """
    payload = records[row]
    if records.labels is not None:
        return payload, int(records.labels[row]), ""
    if format_name == "tar":
        members = tar_members(payload)
        member = next((name for name in _IMAGE_MEMBERS if name in members), None)
        if member is None or "cls" not in members:
            raise BadPhotoError(f"has the members {', '.join(members)}, not one of {_IMAGE_MEMBERS} and cls")
        return members[member], _number(members["cls"]), "cls"
    features = decode(payload)
    name = next((name for name in _IMAGE_FEATURES if name in features), None)
    label = next((name for name in _LABEL_FEATURES if name in features), None)
    if name is None or label is None:
        raise BadPhotoError(
            f"has the features {', '.join(sorted(features))}, not {_IMAGE_FEATURES[0]} and {FROM_ONE}, or image "
            "and label"
        )
    return _only_bytes(name, features[name]), _label(features[label]), label


class CropDraws(NamedTuple):
    """Draws of n records: shares of the area [n, 10], logarithms of ratios [n, 10], places [n, 2] in [0, 1)."""

    areas: NDArray[np.float64]
    ratios: NDArray[np.float64]
    places: NDArray[np.float64]

    @classmethod
    def of(cls, random: SampleRandom) -> "CropDraws":
        return cls(
            random.uniform("crop area", *_AREA, (_ATTEMPTS,)),
            random.uniform("crop ratio", math.log(_RATIO[0]), math.log(_RATIO[1]), (_ATTEMPTS,)),
            random.uniform("crop place", 0.0, 1.0, (2,)),
        )


def random_window(width: int, height: int, draws: CropDraws, row: int) -> tuple[int, int, int, int]:
    """Left, top, width and height of a window of random area and shape, at a random place, to be resized to a square.

    The algorithm is that of torchvision.transforms.RandomResizedCrop.get_params: ten attempts, then the largest window
    in the middle whose ratio is allowed.
    """
    for area, ratio in zip(draws.areas[row] * width * height, np.exp(draws.ratios[row]), strict=True):
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            left, top = draws.places[row] * (width - wide + 1, height - high + 1)
            return int(left), int(top), wide, high
    wide = min(width, round(height * _RATIO[1]))
    high = min(height, round(width / _RATIO[0]))
    return (width - wide) // 2, (height - high) // 2, wide, high


def training_pixels(content: bytes, side: int, draws: CropDraws, row: int) -> NDArray[np.uint8]:
    """uint8 [side, side, 3] of a random part of a photo. Raises `BadPhotoError` if it cannot be decoded."""
    photo = _opened(content)
    left, top, width, height = random_window(photo.width, photo.height, draws, row)
    return _resized(photo.crop((left, top, left + width, top + height)), (side, side))


def validation_pixels(content: bytes, side: int) -> NDArray[np.uint8]:
    """uint8 [side, side, 3] of the middle of a photo, whose shorter side is first made 256/224 of `side`.

    Raises `BadPhotoError`: it cannot be decoded.
    """
    photo = _middle(_opened(content))
    (width, height), short = photo.size, round(side * _MARGIN)
    size = (short, int(short * height / width)) if width <= height else (int(short * width / height), short)
    left, top = (round((length - side) / 2) for length in size)
    return _resized(photo, size)[top : top + side, left : left + side]


def _opened(content: bytes) -> Any:
    """The whole photo in RGB; grey becomes three equal channels, and what is transparent has its colour."""
    from PIL import Image, UnidentifiedImageError

    try:
        photo = Image.open(io.BytesIO(content), formats=_FORMATS)
        if photo.mode.startswith(_MORE_THAN_BYTES):
            raise BadPhotoError(f"has pixels of mode {photo.mode}, not of 8 bits a channel")
        by_colour = photo.mode == "P" and isinstance(photo.info.get("transparency"), bytes)  # else Pillow warns
        return (photo.convert("RGBA") if by_colour else photo).convert("RGB")
    except BadPhotoError:
        raise
    except UnidentifiedImageError as error:
        raise BadPhotoError(
            f"cannot be decoded: it is none of {', '.join(_FORMATS)}, or its head is damaged"
        ) from error
    except Exception as error:  # Pillow's decoders raise whatever damaged bytes lead them to
        raise BadPhotoError(f"cannot be decoded: {error}") from error


def _middle(photo: Any) -> Any:
    longest = _STRIP * min(photo.size)
    if max(photo.size) <= longest:
        return photo
    left, top = ((length - min(length, longest)) // 2 for length in photo.size)
    return photo.crop((left, top, left + min(photo.width, longest), top + min(photo.height, longest)))


def _resized(photo: Any, size: tuple[int, int]) -> NDArray[np.uint8]:
    from PIL import Image

    return np.asarray(photo.resize(size, Image.Resampling.BILINEAR))


def _only_bytes(name: str, values: Feature) -> bytes:
    if isinstance(values, list) and len(values) == 1:
        return values[0]
    raise BadPhotoError(f"has a feature {name!r} that is not the bytes of one picture file")


def _label(values: Feature) -> int:
    if isinstance(values, np.ndarray) and values.dtype == np.int64 and values.size == 1:
        return int(values[0])
    if isinstance(values, list) and len(values) == 1:
        return _number(values[0])
    raise BadPhotoError("has a label that is not one integer")


def _number(text: bytes) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise BadPhotoError(f"has the label {text[:40]!r}, which is not an integer") from error
