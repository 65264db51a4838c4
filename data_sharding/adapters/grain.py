"""grain: the records of a catalog as a `RandomAccessDataSource`, checked against their CRC.

    grain.MapDataset.source(RecordSource(catalog)).shuffle(seed=0).map(...).batch(64)

The classes here are such sources by their methods alone, so this module imports nothing of grain. Shuffling, sharding
and batching are then grain's, not a `ShardPlan`'s.
"""

from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from data_sharding.catalog import Catalog
from data_sharding.loading.decoding import Decode, name_of, read_and_decode
from data_sharding.reading.record_reader import ForkSafeReader, RecordReader


class RecordSource:
    """The payloads, as bytes. grain's worker processes open the files for themselves; options as for `RecordReader`."""

    def __init__(self, catalog: Catalog, *, check_crc: bool = True, max_open_files: int = 256) -> None:
        self._reader = ForkSafeReader(RecordReader(catalog, check_crc, max_open_files))

    def __len__(self) -> int:
        return len(self._reader.catalog)

    def __getitem__(self, record_key: SupportsIndex) -> Any:
        """One record. Errors as `RecordReader.load`; and whatever a decode function raises."""
        return self._getitems([record_key])[0]

    def _getitems(self, record_keys: Sequence[SupportsIndex]) -> list[Any]:
        """Records in the order of the keys; the method that grain looks for to read a batch at once."""
        return list(self._reader.get().read(_ids(record_keys)))

    def __repr__(self) -> str:
        # grain stores it in checkpoints, and refuses to resume where it has changed.
        return f"{type(self).__name__}({len(self)} records, fingerprint={self._reader.catalog.fingerprint})"


class DecodedSource(RecordSource):
    """Decoded records: dicts of the decode function's features, one row each. Otherwise as `RecordSource`.

    `decode` turns k records into arrays of k rows; grain's worker processes must be able to pickle it.
    """

    def __init__(self, catalog: Catalog, decode: Decode, *, check_crc: bool = True, max_open_files: int = 256) -> None:
        super().__init__(catalog, check_crc=check_crc, max_open_files=max_open_files)
        self._decode = decode

    def _getitems(self, record_keys: Sequence[SupportsIndex]) -> list[Any]:
        features, _ = read_and_decode(self._reader.get(), self._decode, _ids(record_keys), None)
        return [{name: array[row] for name, array in features.items()} for row in range(len(record_keys))]

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, decode={name_of(self._decode)})"


def _ids(record_keys: Sequence[SupportsIndex]) -> NDArray[np.int64]:
    return np.array([key.__index__() for key in record_keys], np.int64)
