"""Photos as people have them: other modes, odd sizes, damaged bytes. Each is decoded or refused in our own words."""

from __future__ import annotations

import io
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from picture_files import photo
from PIL import Image

from data_sharding.sample_random import SampleRandom
from hvdtrain.tasks.pictures.photos import BadPhotoError, CropDraws, training_pixels, validation_pixels

DRAWS = CropDraws.of(SampleRandom(1, 0, np.arange(1)))
SIDE = 16
KINDS = [
    ("JPEG", "RGB"),
    ("JPEG", "L"),
    ("JPEG", "CMYK"),
    ("PNG", "RGB"),
    ("PNG", "1"),
    ("PNG", "L"),
    ("PNG", "LA"),
    ("PNG", "P"),
    ("PNG", "RGBA"),
    ("GIF", "P"),
    ("WEBP", "RGBA"),
    ("BMP", "RGB"),
    ("PPM", "RGB"),
    ("TIFF", "RGB"),
]


def plain(content: bytes) -> NDArray[np.uint8]:
    """A square photo of side 16 × 256 / 224 rounded, as torchvision's loader, Resize and CenterCrop see it."""
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))[1:-1, 1:-1]


@pytest.mark.parametrize(("kind", "mode"), KINDS)
def test_every_mode_of_8_bits_is_shown_as_rgb(kind: str, mode: str) -> None:
    content = photo(3, 18, 18, 0, kind, mode)
    pixels = validation_pixels(content, SIDE)
    assert pixels.shape == training_pixels(content, SIDE, DRAWS, 0).shape == (SIDE, SIDE, 3)
    np.testing.assert_array_equal(pixels, plain(content))


def test_transparent_palettes_keep_their_colours_and_warn_of_nothing() -> None:
    image = Image.open(io.BytesIO(photo(3, 18, 18, 0, "PNG", "P")))
    content = io.BytesIO()
    image.save(content, "PNG", transparency=bytes(range(200)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = plain(content.getvalue())
    np.testing.assert_array_equal(validation_pixels(content.getvalue(), SIDE), expected)


DEEP = {"16 bits": (np.uint16, "PNG", "I;16"), "32 bits": (np.int32, "TIFF", "I"), "floats": (np.float32, "TIFF", "F")}


@pytest.mark.parametrize("case", DEEP)
def test_pixels_that_would_be_clipped_are_refused(case: str) -> None:
    dtype, kind, mode = DEEP[case]
    content = io.BytesIO()
    Image.fromarray(np.full((30, 30), 300, dtype)).save(content, kind)
    with pytest.raises(BadPhotoError, match=f"has pixels of mode {mode}, not of 8 bits a channel"):
        validation_pixels(content.getvalue(), SIDE)


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 5000), (5000, 1), (3, 40), (60, 3), (16, 16)])
def test_odd_sizes_become_squares_without_filling_the_memory(width: int, height: int) -> None:
    """A strip of 1 × 5000 resized whole to a shorter side of 256 would have 328 million pixels."""
    content = photo(2, width, height, 0, "PNG")
    for pixels in (validation_pixels(content, SIDE), training_pixels(content, SIDE, DRAWS, 0)):
        assert pixels.shape == (SIDE, SIDE, 3)
        assert 20 <= pixels.mean() <= 90  # the photo's own brightness


def test_the_middle_of_a_strip_is_the_middle_of_the_whole() -> None:
    content = photo(2, 60, 3, 0, "PNG")
    whole = Image.open(io.BytesIO(content)).resize((18 * 20, 18), Image.Resampling.BILINEAR)
    expected = np.asarray(whole)[1:17, 172:188].astype(int)
    assert np.abs(validation_pixels(content, SIDE) - expected).max() <= 2


def test_files_that_would_start_programs_are_not_pictures() -> None:
    """Pillow hands EPS to Ghostscript, whatever the file is called."""
    eps = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(eps, "EPS")
    with pytest.raises(BadPhotoError, match="it is none of JPEG, PNG, "):
        validation_pixels(eps.getvalue(), SIDE)


def test_a_jpeg_that_lacks_its_end_is_refused() -> None:
    content = photo(1, 200, 200)
    for length in (len(content) // 2, len(content) - 40):
        with pytest.raises(BadPhotoError, match="cannot be decoded: image file is truncated"):
            validation_pixels(content[:length], SIDE)


changes = st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), min_size=1, max_size=12)


@pytest.mark.filterwarnings("ignore")  # Pillow's, of metadata that are damaged too
@given(kind=st.sampled_from(KINDS), change=changes, end=st.integers(1, 4000))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_damaged_bytes_are_decoded_or_refused_and_nothing_else(
    kind: tuple[str, str], change: list[tuple[int, int]], end: int
) -> None:
    content = bytearray(photo(1, 40, 30, 0, *kind)[:end])
    for place, value in change:
        content[place % len(content)] = value
    for pixels in (lambda data: validation_pixels(data, SIDE), lambda data: training_pixels(data, SIDE, DRAWS, 0)):
        try:
            assert pixels(bytes(content)).shape == (SIDE, SIDE, 3)
        except BadPhotoError as error:
            assert str(error).startswith(("cannot be decoded: ", "has pixels of mode "))  # noqa: PT017  either is right
