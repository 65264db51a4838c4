"""Config from YAML and options through jsonargparse; every refusal names the key and the nearest valid one."""

import argparse
import functools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from jsonargparse import ArgumentParser

from hvdtrain.config.option_help import PAGES, keys
from hvdtrain.config.parser_refusals import nearest, refused_parse, unknown_key
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.config.yaml_file import NUMBER, commented_config, read_yaml
from hvdtrain.errors import UsageError

_BOOLEANS = {"true", "false", "yes", "no"}
_REPEATED = {"--data.validation"}  # each occurrence adds a value
_FREE_FORM = "task_args"  # its keys are the task's, checked when the task is built


def parse_train_config(argv: Sequence[str]) -> TrainConfig:
    """The config of `hvdtrain train`. `--help`, `--help-all` and `--print-config` print and raise SystemExit(0).

    Options may be written with `-` or `_`, and switches as `--dry-run` or `--dry-run True`.

    Raises UsageError: unknown option or key, a value of the wrong type, an unreadable file.
    """
    for page in (PAGES[word] for word in argv if word in PAGES):
        print(page(), end="")
        raise SystemExit(0)
    parser = _train_parser()
    arguments = _files_first(_gathered(_bracketed(_normalized(argv))))
    _check_options(arguments)
    _check_files(arguments)
    try:
        parsed = parser.parse_args(arguments)
    except (argparse.ArgumentError, OverflowError) as error:
        raise refused_parse(str(error)) from error
    parsed.pop("config")
    wants_print = parsed.pop("print_config")
    _type_option_values(parsed[_FREE_FORM], arguments)
    config = _config_of(parser, parsed)
    if wants_print:
        print(commented_config(config), end="")
        raise SystemExit(0)
    return config


def train_config_of(values: Mapping[str, Any]) -> TrainConfig:
    """The config of a mapping such as a YAML file holds; errors as `parse_train_config`."""
    parser = _train_parser()
    _check_keys(values, "the call")
    _check_texts(values)
    try:
        parsed = parser.parse_object(dict(values))
    except (argparse.ArgumentError, OverflowError) as error:
        raise refused_parse(str(error)) from error
    for name in ("config", "print_config"):
        parsed.pop(name, None)
    return _config_of(parser, parsed)


def _config_of(parser: ArgumentParser, parsed: Any) -> TrainConfig:
    for name, key in keys().items():
        if key.is_path and isinstance(value := parsed.get(name), str):  # shells do it for unquoted words only
            parsed[name] = os.path.expanduser(value)
        if key.hint is str and parsed.get(name) is None:  # which the parser takes for any text
            raise UsageError(
                f"--{name.replace('_', '-')} is null.", "It must be a text.", "leave it out, which means the default."
            )
    return TrainConfig(**vars(parser.instantiate(parsed)))


@functools.cache
def _train_parser() -> ArgumentParser:
    parser = ArgumentParser(prog="hvdtrain train", add_help=False, exit_on_error=False, print_config=None)
    parser.add_argument("--config", action="config")
    parser.add_argument("--print_config", action="store_true")
    # A bare dict: of dict[str, Any], jsonargparse would parse the values again, and make numbers of quoted text.
    parser.add_argument(f"--{_FREE_FORM}", type=dict, default={})
    parser.add_class_arguments(TrainConfig, as_group=False, skip={_FREE_FORM})
    return parser


def _type_option_values(task_args: dict[str, Any], arguments: Sequence[str]) -> None:
    """Make values of --task_args.NAME options, which arrive as text, what they would be in YAML."""
    prefix = f"--{_FREE_FORM}."
    for option in [token.partition("=")[0] for token in arguments if token.startswith(prefix)]:
        *path, last = option.removeprefix(prefix).split(".")
        mapping: Any = task_args
        for name in path:
            mapping = mapping.get(name) if isinstance(mapping, dict) else None
        if isinstance(mapping, dict) and isinstance(mapping.get(last), str):  # else a later option has replaced it
            mapping[last] = _scalar(mapping[last])


def _scalar(text: str) -> bool | int | float | str | None:
    words = {"true": True, "false": False, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    if NUMBER.fullmatch(text):
        return float(text) if set(text) & set(".eE") else int(text)
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if quoted else text


def _normalized(argv: Sequence[str]) -> Iterator[str]:
    switches = {f"--{key.name}" for key in keys().values() if key.hint is bool}
    for token, following in zip(argv, [*argv, ""][1:], strict=True):
        if not token.startswith("--"):
            yield token
            continue
        option, equals, value = token.partition("=")
        if option == "--parallel":  # auto: the group's own value
            option = "--parallel.choose"
        # task_args' own names keep their spelling: they are Python identifiers of the task
        option = "--" + option[2:].replace("-", "_")
        if option in switches and not equals and following.lower() not in _BOOLEANS:
            yield f"{option}=true"
        else:
            yield option + equals + value


def _bracketed(arguments: Iterable[str]) -> Iterator[str]:
    """Values of options that take a list may be written 30,60,80, instead of YAML's [30, 60, 80]."""
    hints = {f"--{key.name}": (key.hint, *get_args(key.hint)) for key in keys().values()}
    lists = {option for option, kinds in hints.items() if any(get_origin(kind) is list for kind in kinds)} - _REPEATED
    option_before = ""
    for token in arguments:
        option, equals, value = token.partition("=")
        if option in lists and equals:
            yield f"{option}={_as_list(value)}"
        else:
            yield _as_list(token) if option_before in lists else token
        option_before = token


def _gathered(arguments: Iterable[str]) -> list[str]:
    """The values of each option that may be repeated as one list, which JSON writes: a pattern may hold what YAML would
    take for something else. A value may also be such a list."""
    rest: list[str] = []
    values: dict[str, list[str]] = {}
    tokens = list(arguments)
    while tokens:
        token = tokens.pop(0)
        option, equals, value = token.partition("=")
        if option not in _REPEATED or not (equals or (tokens and not tokens[0].startswith("--"))):
            rest.append(token)
        elif (value := value if equals else tokens.pop(0)) != "null":
            values.setdefault(option, []).extend(_each(value))
    return [*rest, *(f"{option}={json.dumps(each, ensure_ascii=False)}" for option, each in values.items())]


def _each(text: str) -> list[str]:
    try:
        listed = json.loads(text)
    except ValueError:
        return [text]
    return listed if isinstance(listed, list) else [text]


def _as_list(text: str) -> str:
    return text if text.lstrip().startswith(("[", "--")) or text == "null" else f"[{text}]"


def _files_first(arguments: Iterable[str]) -> list[str]:
    """The same with all --config in front: jsonargparse lets the later of two win, and options override files.
    A leading ~ in the name of a file is the home folder, as in other paths."""
    files: list[str] = []
    options: list[str] = []
    tokens = iter(arguments)
    for token in tokens:
        if token == "--config":
            files += [token, *([os.path.expanduser(value)] if (value := next(tokens, "")) else [])]
        elif token.startswith("--config="):
            files.append("--config=" + os.path.expanduser(token.partition("=")[2]))
        else:
            options.append(token)
    return files + options


def _given(arguments: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Each option, and what follows it, if anything does."""
    for token, following in zip(arguments, [*arguments, ""][1:], strict=True):
        if token.startswith("--"):
            option, equals, value = token.partition("=")
            yield option, value if equals else following or None


def _check_options(arguments: Sequence[str]) -> None:
    valid = {f"--{name}" for name in (*keys(), "config", "print_config")}
    for option, value in _given(arguments):
        shown = option.replace("_", "-")
        if value is not None and value not in ("", "null") and _is_null(value):
            raise UsageError(
                f"{shown} is given as {value!r}.",
                "Values are read as YAML, where this is null: # begins a comment, and & a name.",
                "choose another value; write ./ before a folder's name, and quotes in the value of a task's argument.",
            )
        if option not in valid and option != "--" and not option.startswith(f"--{_FREE_FORM}."):
            raise UsageError(
                f"There is no option {shown}.",
                "A run with an option that does nothing would not be the run you asked for.",
                nearest(shown, valid),
            )


def _is_null(value: str) -> bool:
    try:
        node = yaml.compose(value, yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return False
    return node is None or node.tag == "tag:yaml.org,2002:null"


def _check_files(arguments: Sequence[str]) -> None:
    for option, value in _given(arguments):
        if option == "--config" and value is not None:
            path = Path(value)
            _check_keys(content := read_yaml(path), path)
            _check_texts(content)


def _check_keys(content: Mapping[str, Any], path: Path | str, prefix: str = "") -> None:
    for key, value in content.items():
        name = f"{prefix}{key}"
        if name == _FREE_FORM:
            _require_names(value, path)
            continue
        if isinstance(value, dict) and any(other.startswith(f"{name}.") for other in keys()):
            _check_keys(value, path, f"{name}.")
        elif any(other.startswith(f"{name}.") for other in keys()):
            raise UsageError(
                f"{name} is given as {value!r} in {path}.",
                "It is a group of keys.",
                "write parallel: {choose: auto}, or its keys below it."
                if name == "parallel"
                else "write its keys below it, indented, or leave it out.",
            )
        elif name not in keys():
            raise unknown_key(name, path)


def _check_texts(content: Mapping[str, Any], prefix: str = "") -> None:
    """Refuse what is a text in quotes, and would be read once more."""
    for key, value in content.items():
        if isinstance(value, dict) and key != _FREE_FORM:
            _check_texts(value, f"{prefix}{key}.")
        elif isinstance(value, str) and value not in ("", "null") and _is_null(value):
            raise UsageError(
                f"{prefix}{key} is the text {value!r}.",
                "It would be read as null.",
                "choose another value; of a folder, write ./ before its name.",
            )


def _require_names(values: object, path: Path | str) -> None:
    for name in values if isinstance(values, dict) else ():
        if not isinstance(name, str):
            raise UsageError(
                f"{_FREE_FORM} has the key {name!r} in {path}.",
                "Its keys are names of the task's arguments.",
                f"write for example {_FREE_FORM}: {{width: 64}}.",
            )
