"""Rows of one arm for some seconds: `python worker.py FOLDER SHUFFLE SECONDS` prints what they took, as JSON.

The package data_sharding is the one on the import path, which may be of an earlier version: only names that have been
there from the beginning are used.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

_BATCH: Final = 256


def main() -> None:
    """Read whole epochs until the time is over; an epoch that takes far longer is cut off. Indexing is not timed."""
    folder, shuffle, limit_s = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    batches = _rows_of_pyarrow(folder) if shuffle == "pyarrow" else _rows_of_ours(folder, shuffle)
    next(batches)
    begin, began_cpu, rows = time.perf_counter(), time.process_time(), 0
    for count in batches:
        rows += count
        if time.perf_counter() - begin > limit_s:
            break
    result = {
        "rows": rows,
        "seconds": time.perf_counter() - begin,
        "cpu_s": time.process_time() - began_cpu,
    }
    print(json.dumps(result), flush=True)
    os._exit(0)  # a thread that is inside pyarrow while Python ends would abort the process


def _rows_of_ours(folder: Path, shuffle: Any) -> Iterator[int]:
    """Numbers of rows of one batch after the other, for ever; 0 once all is open."""
    import data_sharding as ds

    catalog = ds.Catalog.index(folder)
    on_disk = shuffle == "global_on_disk"
    options = {"cache": ds.FileCache(folder.with_name(f"{folder.name}-cache"))} if on_disk else {}
    with ds.RecordReader(catalog, **options) as reader:
        yield 0
        epoch, order = 0, shuffle.removesuffix("_on_disk")
        while True:
            plan = ds.ShardPlan.for_catalog(catalog, global_batch=_BATCH, seed=0, epoch=epoch, shuffle=order)
            with ds.ShardLoader(plan, reader, _nothing, rank=0, size=1) as loader:
                for batch in loader:
                    yield len(batch.ids)
            epoch += 1


def _nothing(_records: object) -> dict[str, Any]:
    return {}


def _rows_of_pyarrow(folder: Path) -> Iterator[int]:
    """pyarrow alone, one file after the other, each row as Python's bytes, or as a dict of its columns."""
    import pyarrow.parquet as pq

    yield 0
    while True:
        for path in sorted(folder.glob("*.parquet")):
            for batch in pq.ParquetFile(path).iter_batches(_BATCH, use_threads=False):
                rows = batch["image"].to_pylist() if "image" in batch.schema.names else batch.to_pylist()
                yield len(rows)


if __name__ == "__main__":
    main()
