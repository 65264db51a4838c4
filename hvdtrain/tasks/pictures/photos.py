"""From the bytes of a JPEG, PNG or other picture file to pixels of one size.

Which part of a photo a model sees is chosen as by torchvision's RandomResizedCrop, and its Resize and CenterCrop.
"""

from __future__ import annotations

import io
import math
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_sharding.sample_random import SampleRandom
from hvdtrain.errors import UsageError

_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "PPM", "GIF", "TIFF")  # Pillow's others may start programs (EPS)
_MORE_THAN_BYTES = ("I", "F")  # modes of 16 and 32 bits, which Pillow would clip to 255
_STRIP = 8  # a photo that is longer in its short sides is cut first: resized whole, it could fill the memory
_ATTEMPTS: Final = 10
_AREA: Final = (0.08, 1.0)  # share of the photo: Szegedy et al. 2014 (arXiv:1409.4842, section 6)
_RATIO: Final = (3 / 4, 4 / 3)  # width to height
_MARGIN: Final = 256 / 224  # the shorter side of a photo to validate on, in sides of the crop


class BadPhotoError(ValueError):
    """The bytes are no picture that can be used; the message says how."""


def require_pillow() -> None:
    """Raise `UsageError` unless Pillow is installed."""
    try:
        import PIL.Image  # noqa: F401
    except ModuleNotFoundError as error:
        raise UsageError(
            "Pillow is not installed.", "It decodes JPEGs.", "pip install 'hvdtrain[pictures]'."
        ) from error


class Window(NamedTuple):
    """A part of a photo, in pixels."""

    left: int
    top: int
    width: int
    height: int

    def box(self) -> tuple[int, int, int, int]:
        """Left, upper, right, lower: as Pillow wants it."""
        return self.left, self.top, self.left + self.width, self.top + self.height


class CropDraws(NamedTuple):
    """Draws of n records: shares of the area [n, 10], logarithms of ratios [n, 10], places [n, 2] in [0, 1)."""

    areas: NDArray[np.float64]
    ratios: NDArray[np.float64]
    places: NDArray[np.float64]

    @classmethod
    def of(cls, random: SampleRandom) -> CropDraws:
        """The draws of some records."""
        return cls(
            random.uniform("crop area", *_AREA, (_ATTEMPTS,)),
            random.uniform("crop ratio", math.log(_RATIO[0]), math.log(_RATIO[1]), (_ATTEMPTS,)),
            random.uniform("crop place", 0.0, 1.0, (2,)),
        )


def random_window(width: int, height: int, draws: CropDraws, row: int) -> Window:
    """A window of a random area and shape, at a random place, to be resized to a square.

    The algorithm is that of torchvision.transforms.RandomResizedCrop.get_params: ten attempts, then the largest window
    in the middle whose ratio is allowed.
    """
    for area, ratio in zip(draws.areas[row] * width * height, np.exp(draws.ratios[row]), strict=True):
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            left, top = draws.places[row] * (width - wide + 1, height - high + 1)
            return Window(int(left), int(top), wide, high)
    wide = min(width, round(height * _RATIO[1]))
    high = min(height, round(width / _RATIO[0]))
    return Window((width - wide) // 2, (height - high) // 2, wide, high)


def validation_sizes(width: int, height: int, side: int) -> tuple[tuple[int, int], Window]:
    """The size to give a whole photo, whose shorter side becomes 256/224 of `side`, and the window in its middle."""
    short = round(side * _MARGIN)
    resized = (short, int(short * height / width)) if width <= height else (int(short * width / height), short)
    left, top = (round((length - side) / 2) for length in resized)
    return resized, Window(left, top, side, side)


def training_pixels(content: bytes, side: int, draws: CropDraws, row: int) -> NDArray[np.uint8]:
    """uint8 [side, side, 3] of a random part of a photo.

    Raises:
        BadPhotoError: it cannot be decoded.
    """
    photo = _opened(content)
    window = random_window(photo.width, photo.height, draws, row)
    return _square(photo.crop(window.box()), (side, side))


def validation_pixels(content: bytes, side: int) -> NDArray[np.uint8]:
    """uint8 [side, side, 3] of the middle of a photo.

    Raises:
        BadPhotoError: it cannot be decoded.
    """
    photo = _middle(_opened(content))
    resized, window = validation_sizes(photo.width, photo.height, side)
    return _square(photo, resized)[window.top : window.top + side, window.left : window.left + side]


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


def _square(photo: Any, size: tuple[int, int]) -> NDArray[np.uint8]:
    from PIL import Image

    return np.asarray(photo.resize(size, Image.Resampling.BILINEAR))
