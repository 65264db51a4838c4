"""Targets as probabilities of classes, and mixup (Zhang et al. 2017, arXiv:1710.09412).

The pairs of pictures are the same at every number of workers. The usual implementation mixes a batch with its own
permutation, so that the pairs depend on how the batch was cut for the workers. Here a record's partner is any record of
the part of the data that is trained on, drawn for (seed, epoch, record), and read for this purpose: twice as much is
read and decoded. Each record still is the first of a pair once an epoch, which is what the audit counts.
"""

import copy

import numpy as np
from numpy.typing import NDArray

from data_sharding import FileCache, RecordBatch, RecordReader
from data_sharding.reading.record_table import OnCorrupt

_WHOLE = 256
Targets = NDArray[np.float32]


class Mixup:
    """Draws and reads the second pictures. `alpha`: of the Beta(alpha, alpha) distribution of the shares; `on_corrupt`:
    what to do with a damaged partner: "raise", or else the record stays unmixed. `cache`: of files behind URLs."""

    def __init__(self, alpha: float, on_corrupt: OnCorrupt, cache: FileCache | None = None) -> None:
        self._alpha, self._on_corrupt, self._cache = alpha, on_corrupt, cache
        self._reader: RecordReader | None = None  # made where it is used: this object travels to decode processes

    def partners(self, records: RecordBatch) -> tuple[RecordBatch, NDArray[np.uint16]]:
        """One other record for each, and the share that the records themselves keep: uint16 [n], 128 to 256 of 256.

        A pair is as likely as its reverse, so the larger share can go to the record itself, whose label then is the
        one that accuracy in training means.
        """
        random, catalog = records.random, records.catalog
        if random is None or catalog is None:
            raise ValueError("pictures are mixed in training only, and with those of a catalog")
        ids = random.integers("mixup partner", 0, len(catalog))
        if self._reader is None:
            cache = copy.copy(self._cache)  # each reader closes its own
            self._reader = RecordReader(catalog, on_corrupt=self._on_corrupt, cache=cache)
        others = self._reader.load(ids, random.of_records(ids))
        drawn = np.array([generator.beta(self._alpha, self._alpha) for generator in random.generators("mixup share")])
        share = np.round(_WHOLE * np.maximum(drawn, 1 - drawn)).astype(np.uint16)
        return others, np.where(others.intact, share, _WHOLE).astype(np.uint16)


def mix_pictures(own: NDArray[np.uint8], other: NDArray[np.uint8], share: NDArray[np.uint16]) -> NDArray[np.uint8]:
    """share / 256 of `own` and the rest of `other`, rounded, so that pictures stay bytes: uint8 [n, H, W, C]."""
    weight = share[:, None, None, None]
    mixed = own * weight  # uint16: at most 255 * 256
    mixed += other * (_WHOLE - weight)
    mixed += np.uint16(_WHOLE // 2)
    mixed >>= np.uint16(8)
    return mixed.astype(np.uint8)


def smoothed_targets(labels: NDArray[np.int64], classes: int, smoothing: float) -> Targets:
    """float32 [n, classes]: 1 - smoothing for the label, and smoothing / classes for each class, the label too.

    Source: Szegedy et al. 2015 (arXiv:1512.00567), section 7; the same as label_smoothing of both frameworks.
    """
    targets = np.full((len(labels), classes), smoothing / classes, np.float32)
    targets[np.arange(len(labels)), labels] += np.float32(1 - smoothing)
    return targets


def mix_targets(own: Targets, other: Targets, share: NDArray[np.uint16]) -> Targets:
    """share / 256 of `own` and the rest of `other`. `share`: uint16 [n], 0 to 256."""
    weight = share.astype(np.float32)[:, None] / np.float32(_WHOLE)
    return own * weight + other * (1 - weight)
