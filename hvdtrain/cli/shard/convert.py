"""`hvdtrain shard convert`: rewrite records in another format or number of files."""

import argparse
import contextlib
import errno
import sys
from collections.abc import Sequence
from typing import Any, Final

from data_sharding.convert import convert
from data_sharding.convert.targets import SUFFIXES
from data_sharding.formats.registry import format_named
from hvdtrain.cli.shard.data_arguments import FORMATS, PAIRS, Parser, pairs, record_format
from hvdtrain.errors import HvdtrainError, UsageError

_DESCRIPTION = """\
Rewrite records in another format or number of files. The order is kept, or with --shuffle a seeded permutation of it;
the files' numbers of records differ by at most one. Nothing is overwritten, and after an error no file is left behind.

  hvdtrain shard convert old/train.tfrecord.gz new/train --shards 8          a gzip stream has no random access
  hvdtrain shard convert photos/ shards/ --format image_folder --to tar --shards 16 --shuffle 7
  hvdtrain shard convert 'data/*.rec' out/ --option multipart=sagemaker --format recordio --shards 4
"""
_STEPS: Final = {"write": "writing", "check": "checking"}


def run(argv: Sequence[str]) -> int:
    """Convert as `argv` says; returns 0."""
    options = _parse(argv)
    with contextlib.closing(_Progress()) as progress:
        try:
            done = convert(
                options.src,
                options.dst,
                options.shards,
                to=format_named(options.to, pairs("--to-option", options.to_option)),
                format=record_format(options),
                name=options.name,
                shuffle=options.shuffle,
                payloads=options.payloads,
                on_progress=progress.update,
            )
        except OSError as error:
            is_bad_usage = isinstance(error, FileExistsError | NotADirectoryError) or error.errno == errno.ENAMETOOLONG
            raise (UsageError if is_bad_usage else HvdtrainError)(
                f"Writing to {options.dst} failed: {error}.", "Nothing was converted.", "check the folder and its disk."
            ) from error
    files = f"{len(done.paths)} files" if len(done.paths) > 1 else "1 file"
    print(f"{done.records} records in {files} in {done.paths[0].parent}, read back and equal")
    print(f"fingerprint {done.fingerprint}")
    return 0


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser("convert", _DESCRIPTION)
    parser.add_argument("src", nargs="+", metavar="SRC", help="files, folders, globs or URLs; gzip is expanded")
    parser.add_argument("dst", metavar="DST", help="folder for the new files")
    parser.option("--shards", 1, "number of files", type=int, metavar="N")
    parser.option("--to", "tfrecord", "new format", choices=tuple(SUFFIXES))
    parser.add_argument(
        "--from", "--format", dest="format", choices=FORMATS, help="old format (default: what the names suggest)"
    )
    parser.add_argument("--option", help="option of the old format, e.g. multipart=sagemaker", **PAIRS)
    parser.add_argument("--to-option", help="option of the new format", **PAIRS)
    parser.add_argument("--name", help="name of the new files (default: that of the folder)")
    parser.add_argument("--shuffle", type=int, metavar="SEED", help="write the records in a random order")
    parser.add_argument(
        "--payloads",
        choices=("example", "opaque"),
        help="what payloads that may be tf.train.Examples become in a tar: a member for each feature, or one .bin "
        "(default: opaque for recordio; example for tfrecord, mds, and rows of several columns)",
    )
    return parser.parse(argv)


class _Progress:
    """A bar on stderr where it is a terminal; otherwise a line every tenth of the way."""

    def __init__(self) -> None:
        self._bars = contextlib.ExitStack()
        self._bar: Any = None
        self._step = ""
        self._tenth = 0

    def update(self, step: str, done: int, total: int) -> None:
        """Show that `done` of `total` records have gone through a step."""
        if step != self._step:
            self._bars.close()
            self._step, self._tenth = step, 0
            if sys.stderr.isatty():
                from tqdm import tqdm

                bar = tqdm(total=total, desc=_STEPS[step], unit=" records", file=sys.stderr)
                self._bar = self._bars.enter_context(bar)
        if self._bar is not None:
            self._bar.update(done - self._bar.n)
        elif done * 10 // total > self._tenth:
            self._tenth = done * 10 // total
            print(f"{_STEPS[step]}: {done} of {total} records", file=sys.stderr, flush=True)

    def close(self) -> None:
        self._bars.close()
