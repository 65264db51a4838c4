"""What a batch is made of."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_sharding.sample_random import SampleRandom


class Wanted(NamedTuple):
    """Records ids int64[k] to load, draws for augmentation, length of the global batch's longest item if it is padded,
    and the ranges int64[k, 2] of records that are read whole and kept, of which record i is in the i-th."""

    ids: NDArray[np.int64]
    random: SampleRandom | None = None
    longest: int | None = None
    ranges: NDArray[np.int64] | None = None
