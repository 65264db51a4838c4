"""`hvdtrain completion SHELL`: a script that makes a shell complete commands and options.

The script is made from the parsers of the commands themselves, so that it always knows all of them. No framework is
imported.
"""

import argparse
import importlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from hvdtrain.cli.command_parser import CommandParser, Run, parser_of
from hvdtrain.config.option_help import keys, option_of
from hvdtrain.errors import UsageError

SHELLS: Final = ("bash", "zsh", "fish")
_DESCRIPTION = """\
Print a script with which a shell completes commands, options and their values at the Tab key:

  bash   hvdtrain completion bash > ~/.local/share/bash-completion/completions/hvdtrain
  zsh    hvdtrain completion zsh > DIR/_hvdtrain, where DIR is in $fpath
  fish   hvdtrain completion fish > ~/.config/fish/completions/hvdtrain.fish

A new shell then uses it. Print it again after hvdtrain was updated."""
_FOLDERS: Final = ("RUN", "FOLDER", "DIR")
_FILES: Final = ("FILE", "PATH", "SRC")


def run(argv: Sequence[str]) -> int:
    """Print the script that `argv` asks for; returns 0."""
    parser = CommandParser("hvdtrain completion", "Nothing was printed.", description=_DESCRIPTION)
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
    shell = parser.parse(argv).shell
    print(script(shell))
    return 0


def script(shell: str) -> str:
    """The script for a shell. Raises UsageError where the library that writes it is not installed."""
    try:
        import shtab
    except ImportError as error:
        raise UsageError(
            "The package shtab is not installed.",
            "It writes the scripts for shells.",
            "pip install 'hvdtrain[completion]'",
        ) from error
    from hvdtrain.cli.main import COMMANDS

    parser = argparse.ArgumentParser(prog="hvdtrain", description="train a task, or run a command")
    _add_train_options(parser)
    commands = parser.add_subparsers(metavar="COMMAND")
    for name, (module, line) in COMMANDS.items():
        _add_command(commands, name, module, line)
    _tell_paths(parser, shtab.DIRECTORY, shtab.FILE)
    return str(shtab.complete(parser, shell))


def _add_command(commands: Any, name: str, module: str | Run, line: str) -> None:
    """Add what `hvdtrain NAME` takes: train's options, its own, or commands of its own."""
    if name == "train":
        _add_train_options(commands.add_parser(name, help=line))
        return
    if not isinstance(module, str):
        _add_parser(commands, name, line, parser_of(module))
        return
    loaded = importlib.import_module(module)
    inner: Mapping[str, tuple[str | Run, str]] = getattr(loaded, "COMMANDS", {})
    if inner:
        below = commands.add_parser(name, help=line).add_subparsers(metavar="COMMAND")
        for inner_name, (inner_module, inner_line) in inner.items():
            _add_command(below, inner_name, inner_module, inner_line)
    elif name == "launch":
        launchers = commands.add_parser(name, help=line).add_subparsers(metavar="LAUNCHER")
        for launcher in loaded.launcher_names():
            with suppress(UsageError):  # another package's, which cannot be used
                its_line = loaded.load_launcher(launcher).line
                _add_parser(launchers, launcher, its_line, parser_of(loaded.run, [launcher]))
    else:
        _add_parser(commands, name, line, parser_of(loaded.run))


def _add_parser(commands: Any, name: str, line: str, parser: CommandParser | None) -> None:
    if parser is not None:
        commands.add_parser(name, help=line, parents=[parser], add_help=False)


def _add_train_options(parser: argparse.ArgumentParser) -> None:
    """From the texts of the help: the parser of train itself takes half a second to import."""
    for key, option in keys().items():
        if key == "task_args":
            continue  # its names are the task's
        settings: dict[str, Any] = {"action": "store_true"} if not option.metavar else _value_of(option.metavar)
        parser.add_argument(option_of(key), help=option.about.replace("%", "%%"), **settings)
    parser.add_argument("--config", metavar="FILE", help="YAML file with any of these options")
    parser.add_argument("--help-all", action="store_true", help="show all options")
    parser.add_argument("--print-config", action="store_true", help="print all options as YAML")


def _value_of(metavar: str) -> dict[str, Any]:
    """ "{auto,never,TIME}" → its choices without placeholders."""
    if not metavar.startswith("{"):
        return {"metavar": metavar}
    choices = [word for word in metavar.strip("{}").split(",") if not word.isupper()]
    return {"metavar": metavar, "choices": choices}


def _tell_paths(parser: argparse.ArgumentParser, folder: object, file: object) -> None:
    """Let the shell complete what names a folder or a file, in this parser and those of its commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                _tell_paths(inner, folder, file)
        elif action.metavar in _FOLDERS:
            action.complete = folder  # type: ignore[attr-defined]  # where shtab looks for it
        elif action.metavar in _FILES or (action.type is Path and action.choices is None):
            action.complete = file  # type: ignore[attr-defined]
