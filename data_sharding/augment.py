"""The usual augmentations of small images, on whole batches; the draws belong to the records (see `SampleRandom`).

A decode function calls them with the `random` of its `RecordBatch`:

    def decode(records):
        images = ...  # uint8[k, H, W, C]
        if records.random is not None:
            images = horizontal_flip(random_crop(images, records.random), records.random)
        return {"image": normalise(images, MEAN, STD), "label": records.labels}
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from data_sharding.errors import PlanError
from data_sharding.sample_random import SampleRandom

T = TypeVar("T", bound=np.generic)


def random_crop(
    images: NDArray[T], random: SampleRandom, padding: int = 4, *, fill: float = 0, name: str = "crop"
) -> NDArray[T]:
    """Pad each image on all sides, and cut a window of the old size out at a random place.

    With a padding of 4: the augmentation of He et al. (2015, arXiv:1512.03385, section 4.2) for CIFAR-10.

    Args:
        images: [k, H, W, C] of any type; the result is a copy of the same shape and type.
        random: draws for the k records; two integers in [0, 2 * padding] each, named `name`.
        padding: pixels on each side, of the value `fill`.

    Raises PlanError (images have another shape or number than the draws, or the padding is negative).
    """
    _check_images(images, random)
    if padding < 0:
        raise PlanError(f"The padding is {padding}.", "Images can only grow by it.", "use a padding of 0 or more.")
    count, height, width, channels = images.shape
    padded = np.full((count, height + 2 * padding, width + 2 * padding, channels), fill, images.dtype)
    padded[:, padding : padding + height, padding : padding + width] = images
    corner = random.integers(name, 0, 2 * padding + 1, (2,))
    # All windows as one view, [k, corner rows, corner columns, H, W, C]; taking k of them copies row by row.
    windows = sliding_window_view(padded, (height, width, channels), axis=(1, 2, 3))[:, :, :, 0]
    return windows[np.arange(count), corner[:, 0], corner[:, 1]]


def horizontal_flip(
    images: NDArray[T], random: SampleRandom, probability: float = 0.5, *, name: str = "flip"
) -> NDArray[T]:
    """Mirror each image left to right with the given probability.

    Args:
        images: [k, H, W, C] of any type; the result is a copy of the same shape and type.
        random: draws for the k records; one coin each, named `name`.

    Raises PlanError (images have another shape or number than the draws, or the probability is outside [0, 1]).
    """
    _check_images(images, random)
    flipped = random.coin(name, probability)
    count, height, width, channels = images.shape
    mirrored = np.arange(width * channels).reshape(width, channels)[::-1].ravel()
    # By index and in flat rows: a reversed view would be copied in pieces of one pixel.
    result = images.reshape(count, height, width * channels).copy()
    result[flipped] = np.take(result[flipped], mirrored, axis=2)
    return result.reshape(images.shape)


def normalise(images: NDArray[Any], mean: Sequence[float], std: Sequence[float]) -> NDArray[np.float32]:
    """(images - mean) / std in float32.

    Args:
        images: [..., C] numbers.
        mean, std: one value for each channel or one for all, in the unit of the images: 0 to 255 for bytes.

    Raises PlanError (another number of values than channels, or a std that is not positive).
    """
    means, stds = np.asarray(mean, np.float32), np.asarray(std, np.float32)
    for values in (means, stds):
        if values.shape not in ((images.shape[-1],), (1,)):
            fact = f"Values of shape {values.shape} were given for images of shape {images.shape}."
            conflict = "The last dimension is the channels, and each needs a value."
            raise PlanError(fact, conflict, f"give {images.shape[-1]} values, or one for all channels.")
    if not (stds > 0).all():
        raise PlanError(f"The std is {stds.tolist()}.", "Images are divided by it.", "use positive numbers.")
    result = images.astype(np.float32, order="C")
    # In rows of many pixels: numpy's loops over the few channels of one would cost more than the arithmetic.
    pixels = images.shape[-2] if images.ndim > 1 else 1
    rows = result.reshape(-1, pixels * images.shape[-1])
    rows -= np.tile(np.broadcast_to(means, images.shape[-1:]), pixels)
    rows /= np.tile(np.broadcast_to(stds, images.shape[-1:]), pixels)
    return result


def _check_images(images: NDArray[Any], random: SampleRandom) -> None:
    if images.ndim != 4 or len(images) != len(random):
        raise PlanError(
            f"Images of shape {images.shape} were given with draws for {len(random)} records.",
            "A batch of images is [records, height, width, channels].",
            "give the images of all records of the batch, with a dimension of 1 for one channel.",
        )
