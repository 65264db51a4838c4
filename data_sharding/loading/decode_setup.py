"""What a helper process needs to read and decode as its parent would: the catalog, the reader's options, the decoder.

The catalog's columns lie in one anonymous file in memory that all processes map, so that memory does not grow with
their number. The rest is pickled.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import sys
from typing import Any, Final, NamedTuple, final

import numpy as np

from data_sharding.catalog import Catalog, Damage, OnCorrupt
from data_sharding.catalog_file import COLUMNS
from data_sharding.errors import PlanError
from data_sharding.formats.interface import RecordFormat
from data_sharding.loading.decoding import Decode
from data_sharding.loading.record_reader import RecordReader
from data_sharding.storage import FileEntry

_COLUMNS: Final = tuple(COLUMNS)
_ALIGNMENT: Final = 8


class Setup(NamedTuple):
    """First message to a helper: where to import from, and then what to unpickle."""

    import_path: list[str]
    pickled: bytes


class _Column(NamedTuple):
    name: str
    dtype: str
    rows: int
    begin: int


class _Reading(NamedTuple):
    """All but the columns' content."""

    format: RecordFormat
    files: tuple[FileEntry, ...]
    fingerprint: str
    damage: tuple[Damage, ...]
    columns: tuple[_Column, ...]
    check_crc: bool
    max_open_files: int
    on_corrupt: OnCorrupt
    decode: Decode


def describe(reader: RecordReader, decode: Decode) -> tuple[Setup, int]:
    """The first message to helpers, and the descriptor of the file of columns, which the caller closes.

    Raises:
        PlanError: the decode function, or the format, cannot be sent to another process.
    """
    catalog = reader.catalog
    layout, begin = [], 0
    for name in _COLUMNS:
        if (column := getattr(catalog, name)) is not None:
            layout.append(_Column(name, column.dtype.str, len(column), begin))
            begin += -(-column.nbytes // _ALIGNMENT) * _ALIGNMENT
    options = (reader.check_crc, reader.max_open_files, reader.on_corrupt)
    reading = _Reading(
        catalog.format, catalog.files, catalog.fingerprint, catalog.damage, tuple(layout), *options, decode
    )
    setup = Setup(list(sys.path), _pickled(reading))
    return setup, _shared(catalog, layout)


def open_reading(setup: Setup, columns: int) -> tuple[RecordReader, Decode]:
    """In the helper: the reader and the decode function; `columns` is the descriptor of the file of columns."""
    reading: _Reading = pickle.loads(setup.pickled)
    shared = mmap.mmap(columns, 0, access=mmap.ACCESS_READ)
    arrays: dict[str, Any] = dict.fromkeys(_COLUMNS)
    for name, dtype, rows, begin in reading.columns:
        arrays[name] = np.frombuffer(shared, dtype, rows, begin)
    catalog = Catalog(reading.format, reading.files, **arrays, fingerprint=reading.fingerprint, damage=reading.damage)
    reader = RecordReader(catalog, reading.check_crc, reading.max_open_files, reading.on_corrupt)
    return reader, reading.decode


def _shared(catalog: Catalog, layout: list[_Column]) -> int:
    descriptor = os.memfd_create("data_sharding-catalog")
    with open(descriptor, "wb", closefd=False) as file:
        for name, _, _, begin in layout:
            file.seek(begin)
            file.write(np.ascontiguousarray(getattr(catalog, name)).data)
    return descriptor


@final
class _Pickler(pickle.Pickler):
    """Refuses what the started script defines: a helper does not run that script again."""

    def reducer_override(self, obj: Any) -> Any:
        if getattr(obj, "__module__", None) == "__main__" and hasattr(obj, "__qualname__"):
            raise pickle.PicklingError(f"{obj.__qualname__} is defined in the script that was started")
        return NotImplemented


def _pickled(reading: _Reading) -> bytes:
    content = io.BytesIO()
    try:
        _Pickler(content, protocol=5).dump(reading)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise PlanError(
            f"The decode function cannot be sent to another process: {error}.",
            "Decoding in processes needs one that they can import by its name.",
            "define it at the top level of a module that can be imported, or decode in threads with processes=0.",
        ) from error
    return content.getvalue()
