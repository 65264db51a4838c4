"""The Parquet files that all arms read, and what their rows are."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

FILES: Final = 12


class Shape(NamedTuple):
    """Of one data set: what a page calls its rows, and how many there are."""

    label: str
    groups: int  # row groups of each file
    rows: int  # of each row group
    bytes: int  # of each row's binary column; 0: columns of numbers, a list, and text instead

    @property
    def total_rows(self) -> int:
        return FILES * self.groups * self.rows


SHAPES: Final = {
    "pictures": Shape("rows of 8 KB", 6, 1000, 8000),
    "texts": Shape("rows of 300 bytes", 20, 1000, 300),
    "features": Shape("rows of four columns", 6, 1000, 0),
}


def write_all(folder: Path) -> None:
    """Write what is not there: a folder for each shape. 0.7 GB together."""
    import pyarrow.parquet as pq

    for name, shape in SHAPES.items():
        target = folder / name
        target.mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng(0)
        for number in range(FILES):
            table = _table(shape, random)
            if not (path := target / f"{number:03}.parquet").exists():
                part = path.with_suffix(".part")  # whatever ends this process leaves no half of a file behind
                pq.write_table(table, part, row_group_size=shape.rows, compression="none" if shape.bytes else "snappy")
                part.rename(path)


def _table(shape: Shape, random: np.random.Generator) -> pa.Table:
    import pyarrow as pa

    count = shape.groups * shape.rows
    if shape.bytes:
        payloads = [random.bytes(shape.bytes) for _ in range(count)]
        return pa.table({"image": pa.array(payloads, pa.binary()), "label": np.arange(count) % 10})
    columns: dict[str, Any] = {
        "a": random.random(count),
        "b": random.integers(0, 9, count),
        "c": pa.array(list(random.random((count, 8)))),
        "d": list(itertools.islice(map("word{}".format, itertools.count()), count)),
    }
    return pa.table(columns)
