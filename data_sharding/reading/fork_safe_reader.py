"""A reader that each process opens for itself, whoever copied it there."""

import copy
import os

from data_sharding.reading.record_reader import RecordReader


class ForkSafeReader:
    """A reader for objects that frameworks copy into worker processes: each process opens the files for itself."""

    def __init__(self, reader: RecordReader) -> None:
        self.catalog = reader.catalog
        self._made_in = os.getpid()
        self._opened = (self._made_in, reader)

    @property
    def is_at_home(self) -> bool:
        """Whether the process that asks made this: of copies in others, several may share the batches of a rank."""
        return self._made_in == os.getpid()

    def get(self) -> RecordReader:
        """The reader of the process that asks."""
        process, reader = self._opened
        if process != os.getpid():
            # Two threads may both come here first: one of the two readers is then dropped, unused or not.
            reader = copy.copy(reader)
            self._opened = (os.getpid(), reader)
        return reader
