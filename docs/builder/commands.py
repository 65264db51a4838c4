"""The commands of hvdtrain and their options, asked from their own parsers."""

from __future__ import annotations

import argparse
import importlib
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hvdtrain.cli.command_parser import Run, parser_of
from hvdtrain.cli.main import COMMANDS
from hvdtrain.config.option_help import groups, keys, option_of
from hvdtrain.launch.job_spec import is_script

_EXAMPLES = Path(__file__).parents[2] / "examples"
_TAKE_TRAIN_OPTIONS = ("train", "bench", "plan")
"""Commands that take the options of `hvdtrain train` beside their own."""


@dataclass(frozen=True)
class Command:
    """A command as users write it, what it does in a line, and its parser; None where it takes train's options only."""

    name: str
    line: str
    parser: argparse.ArgumentParser | None


@cache
def commands() -> tuple[Command, ...]:
    """All of them, in the order of `hvdtrain --help`."""
    return tuple(_commands())


def _commands() -> Iterator[Command]:
    for name, (module, line) in COMMANDS.items():
        yield from _below(name, module, line)


def _below(name: str, module: str | Run, line: str) -> Iterator[Command]:
    if not isinstance(module, str):
        yield Command(name, line, parser_of(module))
        return
    loaded = importlib.import_module(module)
    if name == "train":
        yield Command(name, line, None)
    elif inner := getattr(loaded, "COMMANDS", None):
        for each, (its_module, its_line) in inner.items():
            yield from _below(f"{name} {each}", its_module, its_line)
    elif name == "launch":
        for each in loaded.launcher_names():
            yield Command(f"{name} {each}", loaded.load_launcher(each).line, parser_of(loaded.run, [each]))
    else:
        yield Command(name, line, parser_of(loaded.run))


@cache
def train_options() -> frozenset[str]:
    """All options of `hvdtrain train`, with "-" between words."""
    named = {option_of(key) for key in keys()} | {option_of(name) for group in groups().values() for name in group}
    return frozenset(named | {"-h", "--parallel"})


@cache
def launchers_of_examples() -> frozenset[str]:
    """Launchers that the package in examples/ adds, whose options are those of a launcher."""
    found: set[str] = set()
    for file in _EXAMPLES.rglob("pyproject.toml"):
        points = tomllib.loads(file.read_text(encoding="utf-8"))["project"].get("entry-points", {})
        found |= set(points.get("hvdtrain.launchers", ()))
    return frozenset(found)


def unknown_words(call: list[str]) -> list[str]:
    """Options of a call that its command does not know, or a command that does not exist.

    Args:
        call: what follows `hvdtrain`.
    """
    if "--" in call:
        at = call.index("--")
        return unknown_words(call[:at]) + unknown_words(call[at + 1 :])
    first, second = [*call, "", ""][:2]
    if first and not first.startswith("-") and first not in COMMANDS and first != "help":
        return [] if _is_placeholder(first) or is_script([first]) else [first]
    name = first if first in COMMANDS else "train"
    below = {words[1]: command for command in commands() if (words := command.name.split())[0] == name and words[1:]}
    added = launchers_of_examples() if name == "launch" else frozenset()
    if below and second and not second.startswith("-") and second not in {*below, *added, "help"}:
        return [] if _is_placeholder(second) else [second]
    known = {"--debug", "--help", "-h", "--version", "--help-all"}
    known |= train_options() if name in _TAKE_TRAIN_OPTIONS else set()
    for command in commands():
        if command.name in (name, f"{name} {second}") or (second in added and command in below.values()):
            known |= {option for action in _actions(command) for option in action.option_strings}
    options = [word.partition("=")[0] for word in call if word.startswith("-") and len(word) > 1]
    return [each for each in options if not _is_known(each, known)]


def _actions(command: Command) -> list[argparse.Action]:
    return command.parser._actions if command.parser else []


def _is_placeholder(word: str) -> bool:
    return word in ("...", "…") or word.isupper()


def _is_known(option: str, known: set[str]) -> bool:
    if option.startswith("--task-args.") or option.lstrip("-").replace(".", "").isdigit():
        return True
    return option in known or "--" + option[2:].replace("_", "-") in known
