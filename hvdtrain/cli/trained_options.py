"""The options in common of commands that use a trained model on records."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from hvdtrain.cli.command_parser import CommandParser

_CHANGES: Final = ("dir", "on_corrupt", "max_corrupt")


def add_options(parser: CommandParser, set_help: str) -> None:
    """RUN, the training's options of data that may be others now, and --set. Args: `set_help`: what a set is for."""
    parser.add_argument("run", metavar="RUN", type=Path, help="a run folder, or the folder of a checkpoint")
    parser.add_argument("--data.dir", dest="dir", metavar="DIR", help="folder or URL of the data")
    parser.add_argument(
        "--data.on-corrupt",
        dest="on_corrupt",
        choices=["raise", "mask"],
        help="what to do with a damaged record: fail, or leave it out and count it (default: as the training)",
    )
    parser.add_argument(
        "--data.max-corrupt",
        dest="max_corrupt",
        type=float,
        metavar="SHARE",
        help="the share of the records that may be left out (default: as the training)",
    )
    parser.add_argument("--set", action="append", default=[], metavar="NAME[=PATTERN]", help=set_help)


def data_changes(options: argparse.Namespace) -> Mapping[str, Any]:
    """The keys of `DataConfig` that were given."""
    return {key: getattr(options, key) for key in _CHANGES if getattr(options, key) is not None}
