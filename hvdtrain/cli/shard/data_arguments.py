"""What the commands of `hvdtrain shard` have in common: arguments that name data, and errors for wrong usage."""

import argparse
import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

from data_sharding import Catalog, RecordFormat, format_named
from data_sharding.formats.registry import FORMAT_NAMES, added_names
from hvdtrain.cli.command_parser import CommandParser
from hvdtrain.errors import UsageError

PAIRS: Final[dict[str, Any]] = {"action": "append", "default": [], "metavar": "KEY=VALUE"}


class _FormatNames(tuple[str, ...]):
    """The built-in formats. Those that packages add are looked up only if another name is asked for."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in added_names()


FORMATS: Final = _FormatNames(FORMAT_NAMES)


class Parser(CommandParser):
    """Of `hvdtrain shard COMMAND`."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(f"hvdtrain shard {command}", "Nothing was done.", description=description)

    def add_data_arguments(self) -> None:
        """SRC..., --format, --option, --on-corrupt."""
        self.add_argument("src", nargs="+", metavar="SRC", help="files, folders, globs or URLs")
        what = "record format, also one of another package (default: what names suggest)"
        self.add_argument("--format", choices=FORMATS, help=what)
        self.add_argument("--option", help="option of the format, e.g. multipart=sagemaker", **PAIRS)
        text = "stop at a damaged file, or continue with the records that can be found"
        self.option("--on-corrupt", "raise", text, choices=("raise", "mask"))


def pairs(option: str, texts: Iterable[str], sign: str = "=") -> dict[str, str]:
    """Names and values of an option that was given several times; UsageError unless each is NAME=VALUE, with
    a name of its own."""
    parts = [text.partition(sign) for text in texts]
    for name, equals, value in parts:
        if not (name and equals):
            text = f"{name}{equals}{value}"
            raise UsageError(
                f"{option} {text} has no value." if name else f"{option} {text} has no name.",
                f"It is a name, then {sign!r}, then a value.",
                f"write {option} NAME{sign}VALUE.",
            )
    name, times = Counter(name for name, _, _ in parts).most_common(1)[0] if parts else ("", 0)
    if times > 1:
        raise UsageError(f"{option} {name} is given twice.", "It has one value.", "leave one of them out.")
    return {name: value for name, _, value in parts}


def record_format(options: argparse.Namespace) -> RecordFormat | None:
    """The format that `--format` and `--option` name; None: to be told from the files' names.

    Raises:
        UsageError: an option without a format, or not of the form KEY=VALUE.
        data_sharding.PlanError: no such option, or a value that it cannot have.
    """
    if options.format is not None:
        return format_named(options.format, pairs("--option", options.option))
    if options.option:
        raise UsageError(
            f"--option {options.option[0]} is given, and no format.",
            "Options belong to a format.",
            "for example: --format recordio --option multipart=sagemaker.",
        )
    return None


@contextlib.contextmanager
def writing(path: object) -> Iterator[None]:
    """Turn failures to write what `--out` names into `UsageError`."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}.", "It was given as --out.", "name a place you can write to."
        ) from error


def open_catalog(options: argparse.Namespace) -> Catalog:
    """The catalog of the data that the arguments name, from an index published beside them where there is one.

    Raises UsageError, data_sharding.ShardingError (it cannot be read).
    """
    return Catalog.published(options.src, format=record_format(options)) or scan(options)


def scan(options: argparse.Namespace, check_data: bool = False, publish: bool = False) -> Catalog:
    """Index the data that the arguments name. Raises as `open_catalog`."""
    return Catalog.index(
        options.src, check_data, format=record_format(options), on_corrupt=options.on_corrupt, publish=publish
    )
