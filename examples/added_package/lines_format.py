"""A record format: each line of a text file is a record."""

from dataclasses import dataclass

import numpy as np

from data_sharding import RecordFormat, RecordIndex


@dataclass(frozen=True)
class LinesFormat(RecordFormat):
    name = "lines"
    patterns = ("*.lines",)

    def scan(self, path, source, check_data):
        """Where the records are. `open` and `unpack` can be left as they are: a record is the bytes of its span."""
        content = np.frombuffer(source[0 : source.size()], np.uint8)
        ends = np.flatnonzero(content == ord("\n")) + 1
        begins = np.concatenate([[0], ends[:-1]])
        return RecordIndex(begins, ends - begins)
