"""Augmentations of a batch equal those of its images one by one, and belong to the records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import data_sharding as ds
from data_sharding import SampleRandom
from data_sharding.augment import horizontal_flip, normalise, random_crop

SIDES = st.integers(1, 9)
DTYPES = st.sampled_from([np.uint8, np.int16, np.float32, np.float64])


def batch(count: int, height: int, width: int, channels: int, dtype: Any, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, channels)).astype(dtype)


def draws(count: int, seed: int = 3) -> SampleRandom:
    return SampleRandom(seed, 1, np.arange(count) * 7)


@given(st.integers(0, 6), SIDES, SIDES, st.integers(1, 4), DTYPES, st.integers(0, 5), st.integers(0, 9))
def test_crops_equal_windows_of_padded_images(
    count: int, height: int, width: int, channels: int, dtype: Any, padding: int, fill: int
) -> None:
    images, random = batch(count, height, width, channels, dtype), draws(count)
    before = images.copy()
    cropped = random_crop(images, random, padding, fill=fill)
    assert np.array_equal(images, before)
    assert (cropped.dtype, cropped.shape) == (images.dtype, images.shape)
    assert not np.shares_memory(cropped, images)
    corners = random.integers("crop", 0, 2 * padding + 1, (2,)).tolist()
    for image, ours, (row, column) in zip(images, cropped, corners, strict=True):
        for y in range(height):
            for x in range(width):
                from_y, from_x = y + row - padding, x + column - padding
                inside = 0 <= from_y < height and 0 <= from_x < width
                assert ours[y, x].tolist() == (image[from_y, from_x].tolist() if inside else [fill] * channels)


@given(st.integers(0, 6), SIDES, SIDES, st.integers(1, 4), DTYPES, st.floats(0, 1))
def test_flips_equal_reversed_images(
    count: int, height: int, width: int, channels: int, dtype: Any, probability: float
) -> None:
    images, random = batch(count, height, width, channels, dtype), draws(count)
    before = images.copy()
    flipped = horizontal_flip(images, random, probability)
    assert np.array_equal(images, before)
    assert flipped.dtype == images.dtype
    assert not np.shares_memory(flipped, images)
    for image, ours, coin in zip(images, flipped, random.coin("flip", probability), strict=True):
        assert np.array_equal(ours, image[:, ::-1] if coin else image)


@given(st.integers(0, 5), SIDES, SIDES, st.integers(1, 4), DTYPES, st.booleans())
def test_normalise_equals_the_formula(
    count: int, height: int, width: int, channels: int, dtype: Any, one_for_all: bool
) -> None:
    images = batch(count, height, width, channels, dtype)
    values = 1 if one_for_all else channels
    mean, std = [100.5 + channel for channel in range(values)], [50.25 * (channel + 1) for channel in range(values)]
    normalised = normalise(images, mean, std)
    assert normalised.dtype == np.float32
    for image, ours in zip(images, normalised, strict=True):
        for channel in range(channels):
            at = 0 if one_for_all else channel
            expected = (image[..., channel].astype(np.float32) - np.float32(mean[at])) / np.float32(std[at])
            assert np.array_equal(ours[..., channel], expected)


def test_views_in_any_order_are_taken() -> None:
    images = batch(4, 6, 5, 3, np.uint8)
    for view in (images[:, ::-1, ::2], np.asfortranarray(images), images.transpose(0, 2, 1, 3)):
        solid, random = np.ascontiguousarray(view), draws(4)
        assert np.array_equal(random_crop(view, random), random_crop(solid, random))
        assert np.array_equal(horizontal_flip(view, random), horizontal_flip(solid, random))
        assert np.array_equal(normalise(view, [1], [2]), normalise(solid, [1], [2]))


def test_one_image_or_one_pixel_can_be_normalised() -> None:
    assert np.array_equal(normalise(np.full((2, 3, 2), 6), [2, 4], [2, 1]), np.full((2, 3, 2), 2))
    assert normalise(np.array([6, 6]), [2, 4], [2, 1]).tolist() == [2, 2]


def test_an_images_augmentation_does_not_depend_on_its_batch() -> None:
    images, ids = batch(32, 8, 8, 3, np.uint8), np.arange(32) * 11

    def augmented(chosen: np.ndarray) -> np.ndarray:
        random = SampleRandom(5, 2, ids[chosen])
        return horizontal_flip(random_crop(images[chosen], random), random)

    whole = augmented(np.arange(32))
    for chosen in (np.arange(31, -1, -1), np.array([3, 3, 17]), np.arange(8, 16)):
        assert np.array_equal(augmented(chosen), whole[chosen])


def test_every_corner_and_both_sides_occur() -> None:
    random = draws(2000)
    image = np.arange(1, 10, dtype=np.uint8).reshape(1, 3, 3, 1)
    images = np.repeat(image, 2000, axis=0)
    assert len(np.unique(random_crop(images, random, 1).reshape(2000, -1), axis=0)) == 9
    assert len(np.unique(horizontal_flip(images, random).reshape(2000, -1), axis=0)) == 2
    corners = random.integers("crop", 0, 9, (2,))
    assert abs(np.corrcoef(corners.T)[0, 1]) < 5 / np.sqrt(2000)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: random_crop(np.zeros((3, 8, 8), np.uint8), draws(3)), r"shape \(3, 8, 8\)"),
        (lambda: random_crop(batch(3, 8, 8, 3, np.uint8), draws(4)), "draws for 4 records"),
        (lambda: random_crop(batch(3, 8, 8, 3, np.uint8), draws(3), -1), "padding is -1"),
        (lambda: horizontal_flip(batch(3, 8, 8, 3, np.uint8), draws(2)), "draws for 2 records"),
        (lambda: horizontal_flip(batch(3, 8, 8, 3, np.uint8), draws(3), 1.5), "flip"),
        (lambda: normalise(batch(3, 8, 8, 3, np.uint8), [1, 2], [1]), r"shape \(2,\)"),
        (lambda: normalise(batch(3, 8, 8, 3, np.uint8), [1], [1, 2]), r"shape \(2,\)"),
        (lambda: normalise(batch(3, 8, 8, 3, np.uint8), [1], [0]), "std"),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ds.PlanError, match=message):
        call()
