"""Config from YAML and options; every refusal names the key and the nearest valid one."""

import copy
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from hvdtrain.config.conflicts import flag_of
from hvdtrain.config.option_help import PAGES, keys
from hvdtrain.config.option_synonyms import near_options
from hvdtrain.config.parallel_options import ParallelOptions
from hvdtrain.config.train_config import DataConfig, TrainConfig
from hvdtrain.config.value_types import scalar, typed_value
from hvdtrain.config.yaml_file import commented_config, read_yaml
from hvdtrain.errors import UsageError

_BOOLEANS: Final = {"true", "false", "yes", "no"}
_ALL_OPTIONS: Final = "`hvdtrain train --help-all` explains all options."
_FREE_FORM: Final = "task_args"  # its keys are the task's, checked when the task is built
_ONLY_OPTIONS: Final = ("config", "print_config")


def parse_train_config(argv: Sequence[str]) -> TrainConfig:
    """The config of `hvdtrain train`. `--help`, `--help-all` and `--print-config` print and raise SystemExit(0).

    Options may be written with `-` or `_`, and switches as `--dry-run` or `--dry-run True`. They override files.

    Raises:
        UsageError: unknown option or key, a value of the wrong type, an unreadable file.
    """
    for page in (PAGES[word] for word in argv if word in PAGES):
        print(page(), end="")
        raise SystemExit(0)
    options = list(_options(argv))
    values: dict[str, Any] = {}
    for path in (Path(text) for name, text in options if name == "config"):
        values |= _flat(read_yaml(path), path)
    for name, text in options:
        if name.startswith(f"{_FREE_FORM}."):
            _set_task_argument(values, name.split(".")[1:], scalar(text))
        elif name not in _ONLY_OPTIONS:
            values[name] = _typed(name, text)
    config = _config_of(values)
    if any(name == "print_config" for name, _ in options):
        print(commented_config(config), end="")
        raise SystemExit(0)
    return config


def train_config_of(values: Mapping[str, Any]) -> TrainConfig:
    """The config of a mapping such as a YAML file holds; errors as `parse_train_config`."""
    return _config_of(_flat(values, "the call"))


def _config_of(values: Mapping[str, Any]) -> TrainConfig:
    def of(prefix: str) -> dict[str, Any]:
        return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}

    groups = {"data": DataConfig(**of("data.")), "parallel": ParallelOptions(**of("parallel."))}
    return TrainConfig(**{name: value for name, value in values.items() if "." not in name}, **groups)


def _typed(name: str, value: Any) -> Any:
    return typed_value(flag_of(name), value, keys()[name].hint)


def _set_task_argument(values: dict[str, Any], path: Sequence[str], value: Any) -> None:
    mapping = values.setdefault(_FREE_FORM, {})
    for name in path[:-1]:
        if not isinstance(mapping.get(name), dict):
            mapping[name] = {}
        mapping = mapping[name]
    mapping[path[-1]] = value


def _options(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The options as they come, each with its text; the names are those of keys."""
    words, unknown = list(argv), []
    while words:
        word = words.pop(0)
        option, equals, text = word.partition("=")
        if not option.startswith("--") or word == "--":
            unknown.append(word)
            continue
        name = _name_of(option)
        if name == "print_config" or (name in keys() and keys()[name].hint is bool):
            if not equals:
                is_said = name != "print_config" and bool(words) and words[0].lower() in _BOOLEANS
                text = words.pop(0) if is_said else "true"
        elif not equals:
            if not words or not _is_value(words[0]):
                raise _not_understood(f"{flag_of(name)} has no value", f"write {flag_of(name)} VALUE.")
            text = words.pop(0)
        if text.lstrip().startswith("#"):
            raise UsageError(
                f"{option.replace('_', '-')} is given as {text!r}.",
                "What follows a # is a comment in YAML, so that the value would count as null.",
                "choose a value that does not begin with #.",
            )
        yield name, text
    if unknown:
        near = near_options(unknown[0], map(flag_of, keys())) if unknown[0].startswith("-") else ""
        how = "write --FLAG VALUE, once for each; switches such as --dry-run stand alone, or with true or false."
        raise _not_understood(f"unrecognized arguments: {' '.join(unknown)}", near or how)


def _name_of(option: str) -> str:
    """Of the key that an option sets: "--batch-size" → "batch_size". Raises UsageError for one that is not there."""
    name = option[2:].replace("-", "_")
    if name == "parallel":  # auto: the group's own value
        return "parallel.choose"
    if name not in keys() and name not in _ONLY_OPTIONS and not name.startswith(f"{_FREE_FORM}."):
        shown = option.replace("_", "-")
        raise UsageError(
            f"There is no option {shown}.",
            "A run with an option that does nothing would not be the run you asked for.",
            _nearest(shown, map(flag_of, [*keys(), *_ONLY_OPTIONS])),
        )
    return name


def _is_value(word: str) -> bool:
    """Whether a word after an option is its value, and not another option."""
    return not word.startswith("-") or word == "-" or re.fullmatch(r"-[\d.].*", word) is not None


def _not_understood(what: str, hint: str) -> UsageError:
    return UsageError(
        f"The command line cannot be understood: {what}.", "Nothing was started.", f"{hint} {_ALL_OPTIONS}"
    )


def _nearest(wrong: str, valid: Iterable[str]) -> str:
    """The end of a HINT: at most three options, and where the others are explained."""
    return f"{near_options(wrong, valid)} {_ALL_OPTIONS}".lstrip()


def _flat(content: Mapping[str, Any], path: Path | str, prefix: str = "") -> dict[str, Any]:
    """The values of a file or call, of the types that their keys have; "data.dir" for a key of a group."""
    values: dict[str, Any] = {}
    for key, value in content.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and any(other.startswith(f"{name}.") for other in keys()):
            values |= _flat(value, path, f"{name}.")
        elif name in keys():
            values[name] = _typed(name, copy.deepcopy(value))
        else:
            _refuse_key(name, path)
    return values


def _refuse_key(name: str, path: Path | str) -> NoReturn:
    hint = _nearest(name, [f"--{key}" for key in keys()])
    raise UsageError(
        f"There is no key {name!r} in a config, but {path} has it.",
        "A run with a key that does nothing would not be the run you asked for.",
        re.sub(r"(?<!train )--([\w.-]+)", lambda flag: flag[1].replace("-", "_"), hint),
    )
