"""What the parser refuses, in our three parts: options and keys that there are not, values of another type."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

from hvdtrain.config.option_help import keys
from hvdtrain.config.option_synonyms import near_options
from hvdtrain.errors import UsageError

_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "dict": "a mapping",
    "str": "a text (in YAML in quotes, if it looks like a number)",
    "NoneType": "null",
}
_LISTS = {float: "a list, e.g. [30, 60]", str: 'a list, e.g. ["old=old-*.tfrecord"]'}
"""By the type of what is in them."""
_ALL_OPTIONS = "`hvdtrain train --help-all` explains all options."
_OF_COMMAND_LINE = {
    "config": "a config names no other one: write all keys into one file, or give several by --config FILE.",
    "print_config": "it is given on the command line only: --print-config.",
}
"""Options that are no keys: what is told of them."""


def unknown_key(name: str, path: Path | str) -> UsageError:
    """Of a config that has the key `name`. Args: `path`: where it was read."""
    near = nearest(name, [f"--{key}" for key in keys()])
    of_command_line = "config" if near.startswith("did you mean --config?") else name
    as_keys = re.sub(r"(?<!train )--([\w.-]+)", lambda flag: flag[1].replace("-", "_"), near)
    hint = _OF_COMMAND_LINE.get(of_command_line, as_keys)
    return UsageError(
        f"There is no key {name!r} in a config, but {path} has it.",
        "A run with a key that does nothing would not be the run you asked for.",
        hint,
    )


def nearest(wrong: str, valid: Iterable[str]) -> str:
    """The end of a HINT: at most three options, and where the others are explained."""
    near = near_options(wrong, [option.replace("_", "-") for option in valid])
    return f"{near} {_ALL_OPTIONS}".lstrip()


def refused_parse(message: str) -> UsageError:
    """jsonargparse's message in our three parts."""
    key = re.search(r'(?:Parser key "|argument --?)([\w.]+)', message)
    value = re.search(r"(?:Given value|Got value): (.*)", message)
    if key and value:
        wanted = re.findall(r"Expected an? (?:<class '(\w+)'>|typing\.Literal\[(.*?)\])", message)
        kinds = " or ".join(_kind(kind, key[1]) or other.replace("'", "") for kind, other in wanted)
        name = "--" + key[1].replace("_", "-")
        return UsageError(
            f"{name} is given as {value[1]!r}.", f"It must be {kinds}.", f"`hvdtrain train --help-all` explains {name}."
        )
    return UsageError(
        f"The command line cannot be understood: {' '.join(message.split())}.",
        "Nothing was started.",
        f"{_how_written(message)} {_ALL_OPTIONS}",
    )


def _kind(kind: str, option: str) -> str:
    """A type in words. "" where it has no name."""
    if kind != "list":
        return _KINDS.get(kind, kind)
    hint = keys()[option].hint if option in keys() else None
    return _LISTS[str if list[str] in (hint, *get_args(hint)) else float]


def _how_written(message: str) -> str:
    """What jsonargparse's message calls for."""
    lacking = re.search(r"argument (?:-\w/)?(--[\w.]+): expected", message)
    if lacking:
        return f"write {lacking[1].replace('_', '-')} VALUE."
    words = message.rpartition("arguments: ")[2].split()
    known = [f"--{key}" for key in keys()]
    near = near_options(words[0], known) if words and words[0][0] == "-" else ""
    return near or "write --FLAG VALUE, once for each; switches such as --dry-run stand alone, or with true or false."
