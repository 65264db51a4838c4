"""What the commands of `hvdtrain shard` have in common: how data is named, and how wrong calls are answered."""

from __future__ import annotations

import argparse
import math

from data_sharding import Catalog, RecordFormat, format_named
from data_sharding.formats.registry import FORMAT_NAMES
from hvdtrain.cli.command_parser import CommandParser
from hvdtrain.errors import UsageError

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class Parser(CommandParser):
    """Of `hvdtrain shard COMMAND`."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(
            f"hvdtrain shard {command}",
            "Nothing was done.",
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )


def add_data_arguments(parser: Parser) -> None:
    """SRC..., --format, --option, --on-corrupt."""
    parser.add_argument("src", nargs="+", metavar="SRC", help="files, folders, globs or URLs")
    parser.add_argument("--format", choices=FORMAT_NAMES, help="record format (default: what the names suggest)")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="option of the format, e.g. multipart=sagemaker",
    )
    parser.add_argument(
        "--on-corrupt",
        choices=("raise", "mask"),
        default="raise",
        help="stop at a damaged file, or continue with the records that can be found",
    )


def record_format(options: argparse.Namespace) -> RecordFormat | None:
    """The format that `--format` and `--option` name; None: to be told from the files' names.

    Raises:
        UsageError: an option without a format, or not of the form KEY=VALUE.
        data_sharding.PlanError: no such option, or a value that it cannot have.
    """
    pairs: dict[str, str] = {}
    for text in options.option:
        key, equals, value = text.partition("=")
        if not equals or options.format is None:
            raise UsageError(
                f"--option {text} is given{'' if equals else ' without a value'}.",
                "Options belong to a format, as KEY=VALUE.",
                "for example: --format recordio --option multipart=sagemaker.",
            )
        pairs[key] = value
    return format_named(options.format, pairs) if options.format is not None else None


def open_catalog(options: argparse.Namespace, check_data: bool = False) -> Catalog:
    """Index the data that the arguments name.

    Raises:
        UsageError, data_sharding.ShardingError: it cannot be read.
    """
    return Catalog.index(options.src, check_data, format=record_format(options), on_corrupt=options.on_corrupt)


def at_least(flag: str, value: int, least: int) -> None:
    """Raise `UsageError` if a number is too small."""
    if value < least:
        raise UsageError(f"{flag} is {value}.", f"It must be {least} or more.", f"give {least} or a larger number.")


def in_bytes(count: float) -> str:
    """For people: 1536 is "1.5 KiB"."""
    power = min(int(math.log(count, 1024)), len(_UNITS) - 1) if count >= 1 else 0
    return f"{count:.0f} B" if power == 0 else f"{count / 1024**power:.1f} {_UNITS[power]}"
