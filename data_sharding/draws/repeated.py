"""Each record the same number of times an epoch."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Repeated:
    """Each of `size` records `times` times an epoch, each time with other random draws for augmentation.

    Attributes:
        in_one_batch: the copies of a record stand beside each other, so that one global batch has all of them if it is
            a multiple of `times` (Hoffer et al., "Augment your batch", CVPR 2020).
    """

    size: int
    times: int
    in_one_batch: bool

    weights = None

    @property
    def length(self) -> int:
        return self.size * self.times

    @property
    def together(self) -> int:
        return self.times if self.in_one_batch else 1

    def records(self, numbers: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:  # noqa: ARG002  all are alike
        return numbers // self.times

    def describe(self) -> Mapping[str, Any]:
        return {"rule": "repeated", **dataclasses.asdict(self)}
