"""`hvdtrain shard bench`: how fast records can be read here."""

import argparse
import itertools
import time
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from data_sharding import Catalog, RecordBatch, RecordReader, ShardLoader, ShardPlan
from data_sharding.plan.shard_plan import Shuffle
from hvdtrain.cli.command_parser import number, positive
from hvdtrain.cli.shard.data_arguments import Parser, open_catalog
from hvdtrain.cli.tables import print_table
from hvdtrain.config.train_config import DataConfig
from hvdtrain.data.file_cache import file_cache
from hvdtrain.units import in_bytes

_DESCRIPTION = """\
How fast one process reads these records, without decoding them: shuffled and in order, with and without checksums.

  hvdtrain shard bench 'data/train-*.tfrecord' --seconds 2
  hvdtrain shard bench s3://bucket/train --cache-dir /scratch/cache

The first pass over files that are not in memory measures the disk.
"""
_ARMS: Final[tuple[tuple[Shuffle, bool], ...]] = (
    ("global", True),
    ("global", False),
    ("block", True),
    ("none", True),
    ("none", False),
)


def run(argv: Sequence[str]) -> int:
    """Measure as `argv` says; returns 0."""
    parser = Parser("bench", _DESCRIPTION)
    parser.add_data_arguments()
    parser.option("--batch-size", 256, "records per batch", type=number("--batch-size", 1))
    parser.option("--seconds", 2.0, "time for each line of the table", type=positive("--seconds"))
    parser.option("--threads", 1, "number of background threads", type=number("--threads", 1))
    parser.add_argument("--cache-dir", metavar="DIR", help="keep there what a training with --data.cache-dir keeps")
    options = parser.parse(argv)
    catalog = open_catalog(options)
    rows = [
        [shuffle, "yes" if check else "no", *_measure(catalog, shuffle, check, options)]
        for shuffle, check in _ARMS
        if check or catalog.crcs is not None
    ]
    columns = ["order", "checksums", "first batch", "records/s", "bytes/s"]
    print_table(f"{len(catalog):,} records, {in_bytes(catalog.total_bytes)}", columns, rows)
    return 0


def _measure(catalog: Catalog, shuffle: Shuffle, check: bool, options: argparse.Namespace) -> list[str]:
    """Time to the first batch, records a second and bytes a second, epoch after epoch until the time is up."""
    begin = time.perf_counter()
    first, records, size = 0.0, 0, 0
    cache = file_cache(DataConfig(cache_dir=options.cache_dir))
    with RecordReader(catalog, check, on_corrupt=options.on_corrupt, cache=cache) as reader:
        for epoch in itertools.count():
            plan = ShardPlan.for_catalog(catalog, global_batch=options.batch_size, seed=0, epoch=epoch, shuffle=shuffle)
            with ShardLoader(plan, reader, _sizes, rank=0, size=1, threads=options.threads, prefetch=4) as loader:
                for batch in loader:
                    elapsed = time.perf_counter() - begin
                    first = first or elapsed
                    records += int(batch.weights.sum())
                    size += int(batch.features["size"] @ batch.weights)
                    if elapsed > options.seconds:
                        return [f"{first * 1e3:.1f} ms", f"{records / elapsed:,.0f}", f"{in_bytes(size / elapsed)}/s"]
    raise AssertionError("epochs never end")


def _sizes(records: RecordBatch) -> dict[str, NDArray[np.int64]]:
    return {"size": np.fromiter(map(len, records), np.int64, len(records))}
