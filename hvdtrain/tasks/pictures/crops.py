"""Which part of a photo a model sees: as torchvision's RandomResizedCrop, and its Resize and CenterCrop."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_sharding.sample_random import SampleRandom

_ATTEMPTS: Final = 10
_AREA: Final = (0.08, 1.0)  # share of the photo: Szegedy et al. 2014 (arXiv:1409.4842, section 6)
_RATIO: Final = (3 / 4, 4 / 3)  # width to height
_MARGIN: Final = 256 / 224  # the shorter side of a photo to validate on, in sides of the crop


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
