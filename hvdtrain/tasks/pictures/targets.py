"""What a model is to answer for each class, as probabilities."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Targets = NDArray[np.float32]


def smoothed_targets(labels: NDArray[np.int64], classes: int, smoothing: float) -> Targets:
    """float32 [n, classes]: 1 - smoothing for the label, and smoothing / classes for each class, the label too.

    Source: Szegedy et al. 2015 (arXiv:1512.00567), section 7; the same as label_smoothing of both frameworks.
    """
    targets = np.full((len(labels), classes), smoothing / classes, np.float32)
    targets[np.arange(len(labels)), labels] += np.float32(1 - smoothing)
    return targets


def mix_targets(own: Targets, other: Targets, share: NDArray[np.uint16]) -> Targets:
    """share / 256 of `own` and the rest of `other`. `share`: uint16 [n], 0 to 256."""
    weight = share.astype(np.float32)[:, None] / np.float32(256)
    return own * weight + other * (1 - weight)
