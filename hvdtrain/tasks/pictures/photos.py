"""From the bytes of a JPEG, PNG or other picture file to pixels of one size."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdtrain.errors import UsageError
from hvdtrain.tasks.pictures.crops import CropDraws, random_window, validation_sizes

_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "PPM", "GIF", "TIFF")  # Pillow's others may start programs (EPS)
_MORE_THAN_BYTES = ("I", "F")  # modes of 16 and 32 bits, which Pillow would clip to 255
_STRIP = 8  # a photo that is longer in its short sides is cut first: resized whole, it could fill the memory


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
