"""Text files as data for language models: windows of a fixed number of bytes, one after the other."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from data_sharding.errors import PlanError
from data_sharding.formats.record_format import RecordFormat, RecordIndex
from data_sharding.storage import ByteSource

_WINDOW_LIMIT: Final = 1 << 62  # offsets are int64


@dataclass(frozen=True)
class TextFormat(RecordFormat):
    """`RecordFormat` for windows of any file's bytes.

    A window has `window` bytes and one more, with which the next window begins: so each byte but a file's first is
    predicted exactly once. The last window of a file is shorter if the file ends inside it. `first` and `last` are the
    part of each file's windows to use, as fractions: 0.0 and 0.9 for the first nine tenths.

    Raises PlanError (an empty window, or an empty part).
    """

    window: int = 256
    first: float = 0.0
    last: float = 1.0
    name = "text"
    patterns = ("*.txt",)

    def __post_init__(self) -> None:
        if not 1 <= self.window < _WINDOW_LIMIT or not 0 <= self.first < self.last <= 1:
            fact = f"The format text was given window={self.window}, first={self.first:g} and last={self.last:g}."
            conflict = "A window has one byte or more, and a part lies between 0 and 1."
            raise PlanError(fact, conflict, "use window=256, first=0 and last=0.9, for example.")

    def scan(self, path: str, source: ByteSource, check_data: bool) -> RecordIndex:  # noqa: ARG002
        """Nothing of the file is read."""
        size = source.size()
        count = -(-(size - 1) // self.window)  # the first byte is predicted by nobody
        windows = np.arange(math.floor(self.first * count), math.floor(self.last * count), dtype=np.int64)
        offsets = windows * self.window
        return RecordIndex(offsets, np.minimum(self.window + 1, size - offsets))
