"""`hvdtrain shard index`: find all records of a data set and describe them."""

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data_sharding import Catalog
from data_sharding.atomic import final_path
from data_sharding.catalog.published_index import place_of
from data_sharding.errors import ShardingError
from data_sharding.storage import locate_file
from data_sharding.storage.redaction import redacted
from hvdtrain.cli.command_parser import number
from hvdtrain.cli.shard.data_arguments import Parser, scan, writing
from hvdtrain.cli.tables import print_table
from hvdtrain.errors import UsageError
from hvdtrain.units import in_bytes

_DESCRIPTION = """\
Find all records of a data set and describe them.

  hvdtrain shard index 'data/train-*.tfrecord'
  hvdtrain shard index photos/ --format image_folder --out photos.npz
  hvdtrain shard index s3://bucket/train --publish                later jobs need not look into the files
  hvdtrain shard index data/ --check-data --on-corrupt mask       name damaged records
"""


def run(argv: Sequence[str]) -> int:
    """Index as `argv` says; returns 0, or 1 if damage was found and skipped."""
    parser = Parser("index", _DESCRIPTION)
    parser.add_data_arguments()
    parser.add_argument("--check-data", action="store_true", help="read everything and verify every checksum")
    parser.option("--limit", 20, "name at most N damaged places", type=number("--limit", 1), metavar="N")
    parser.add_argument("--out", metavar="FILE", help="save the catalog there, as .npz")
    parser.add_argument("--publish", action="store_true", help="write an index beside the files, for all later jobs")
    options = parser.parse(argv)
    if options.out is not None:
        with writing(options.out):
            _require_folder(final_path(options.out).parent)
        _require_catalog(options.out)
    begin = time.perf_counter()
    catalog = scan(options, options.check_data, options.publish)
    seconds = time.perf_counter() - begin
    print_table("", ["", "value"], _facts(catalog, seconds))
    for damage in catalog.damage[: options.limit]:
        print(f"DAMAGED: {damage.reason}")
    if len(catalog.damage) > options.limit:
        print(f"DAMAGED: {len(catalog.damage) - options.limit:,} more; --limit {len(catalog.damage)} names all")
    if options.out is not None:
        _save(catalog, options.out)
        print(f"catalog saved to {options.out}")
    if options.publish and (path := place_of([file.path for file in catalog.files])) is not None:
        print(f"index published at {redacted(path)} ({in_bytes(locate_file(path).size)})")
    return 1 if catalog.damage else 0


def _require_folder(folder: Path) -> None:
    """Raise OSError unless files can be made there, before all data are looked at."""
    with tempfile.TemporaryFile(dir=folder):
        pass


def _require_catalog(path: str) -> None:
    """Raise UsageError if there is a file that `shard index` has not written: only such a one is replaced."""
    try:
        if os.path.exists(path):
            Catalog.load(path)
    except (ShardingError, OSError, ValueError) as error:
        raise UsageError(
            f"--out {path} is there already, and is no catalog.", "It would be lost.", "choose another --out."
        ) from error


def _save(catalog: Catalog, path: str) -> None:
    for file in catalog.files if os.path.exists(path) else ():
        if os.path.exists(file.path) and os.path.samefile(file.path, path):
            raise UsageError(f"--out {path} is one of the data files.", "It would be lost.", "choose another --out.")
    with writing(path):
        catalog.save(path)


def _facts(catalog: Catalog, seconds: float) -> list[list[str]]:
    least, median, most = np.quantile(catalog.lengths, (0, 0.5, 1))
    labels = catalog.labels
    return [
        ["format", catalog.format.name],
        ["files", f"{len(catalog.files):,}"],
        ["records", f"{len(catalog):,}"],
        ["bytes in records", in_bytes(catalog.total_bytes)],
        ["record size (least, median, most)", ", ".join(in_bytes(size) for size in (least, median, most))],
        ["stored checksums", "yes" if catalog.crcs is not None else "none in this format"],
        ["labels", f"{len(np.unique(labels)):,} different" if labels is not None else "inside the records, if any"],
        ["fingerprint", catalog.fingerprint],
        ["indexed in", f"{seconds:.3f} s"],
    ]
