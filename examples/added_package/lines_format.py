"""A record format: each line of a text file is a record."""

from dataclasses import dataclass

import numpy as np

from data_sharding import CorruptRecordError, PlanError, RecordFormat, RecordIndex


@dataclass(frozen=True)
class LinesFormat(RecordFormat):
    skip: int = 0  # an option, LinesFormat(skip=1): lines at the beginning that are no records
    name = "lines"
    patterns = ("*.lines",)

    def __post_init__(self):
        if self.skip < 0:  # fact, conflict and HINT
            raise PlanError(f"The format lines got skip={self.skip}.", "No file has such lines.", "use 0 or more.")

    def scan(self, path, source, check_data):
        """Where the records are. `open` and `unpack` can be left as they are: a record is the bytes of its span."""
        content = np.frombuffer(source[0 : source.size()], np.uint8)
        ends = np.flatnonzero(content == ord("\n")) + 1
        begins = np.concatenate([[0], ends])
        damage = []  # is returned, not raised, so that the sound records of the file can be used
        if begins[-1] < len(content):
            fact = f"{path} ends inside line {len(begins)}."
            damage.append(CorruptRecordError(fact, "It was cut short.", path=path, offset=int(begins[-1])))
        return RecordIndex(begins[self.skip : -1], np.diff(begins)[self.skip :], damage=tuple(damage))
