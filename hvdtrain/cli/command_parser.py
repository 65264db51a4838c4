"""What the commands have in common: choosing one, errors for wrong usage, spellings of options."""

import argparse
import difflib
import importlib
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

from hvdtrain.errors import UsageError, did_you_mean

Number = TypeVar("Number", int, float)

Run = Callable[[Sequence[str]], int]
"""What a command does with its words; returns its exit code."""


def run_subcommand(
    group: str, kind: str, commands: Mapping[str, tuple[str | Run, str]], argv: Sequence[str], note: str = ""
) -> int:
    """Run what `argv` names among the commands of `hvdtrain GROUP`, or print what there is; returns its exit code.

    `commands`: name → (its `Run`, or the module whose `run` that is, imported only when it is used; one line of help).
    `kind` is what one of them is called, e.g. "measurement"; `note` is added to the help. Raises UsageError: there is
    no such command.
    """
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(f"usage: hvdtrain {group} {kind.upper()} ...\n")
        width = max(10, *map(len, commands))
        print("\n".join(f"  {name:{width}} {line}" for name, (_, line) in commands.items()))
        print(f"\n`hvdtrain {group} {kind.upper()} --help` explains each.{note}")
        return 0
    if argv[0] not in commands:
        fact = f"There is no {kind} `hvdtrain {group} {argv[0]}`."
        raise UsageError(fact, "Nothing was done.", did_you_mean(argv[0], commands))
    place, _ = commands[argv[0]]
    command: Run = importlib.import_module(place).run if isinstance(place, str) else place
    return command(argv[1:])


def checked(
    name: str, kind: Callable[[str], Number], is_right: Callable[[Number], bool], conflict: str, hint: str
) -> Callable[[str], Number]:
    """The `type` of an option for a number of some kind, which raises `UsageError` for one that is not right."""

    def value_of(text: str) -> Number:
        if not is_right(value := kind(text)):
            raise UsageError(f"{name} is {text}.", conflict.format(text), hint)
        return value

    value_of.__name__ = kind.__name__  # argparse says "invalid int value"
    return value_of


def number(name: str, least: int, most: int | None = None) -> Callable[[str], int]:
    """For whole numbers of `least` or more, and of at most `most`."""
    if most is not None:
        range_ = f"from {least} to {most:,}"
        return checked(
            name, int, lambda value: least <= value <= most, f"It must be {range_}.", f"give a number {range_}."
        )
    hint = f"give {least} or a larger number."
    return checked(name, int, lambda value: value >= least, f"It must be {least} or more.", hint)


def positive(name: str) -> Callable[[str], float]:
    """For a time in seconds."""
    return checked(name, float, lambda value: 0 < value < math.inf, "{} is not a time.", "give a positive number.")


def number_list(option: str, kind: Callable[[str], Number], example: str) -> Callable[[str], tuple[Number, ...]]:
    """The `type` of an option for positive numbers, separated by commas: each once, in rising order.

    It raises `UsageError` for anything else; `example` is one for its HINT.
    """

    def numbers(text: str) -> tuple[Number, ...]:
        try:
            values = {kind(part) for part in text.split(",")}
        except ValueError:
            values = set()
        if not values or not all(0 < value < math.inf for value in values):
            raise UsageError(f"{option} is {text}.", "It is a list of positive numbers.", f"try {option} {example}.")
        return tuple(sorted(values))

    return numbers


class _ParserAsked(BaseException):  # noqa: N818  no error
    """Carries a command's parser out of the command. No `except Exception` on the way takes it."""

    def __init__(self, parser: "CommandParser") -> None:
        super().__init__(parser)
        self.parser = parser


_asks_for_parser: ContextVar[bool] = ContextVar("_asks_for_parser", default=False)


def parser_of(command: Run, argv: Sequence[str] = ()) -> "CommandParser | None":
    """The parser with which `command` reads its arguments, which it does first; nothing else of it happens. `argv`: for
    commands that choose their parser by a first word."""
    token = _asks_for_parser.set(True)
    try:
        command(argv)
    except _ParserAsked as asked:
        return asked.parser
    finally:
        _asks_for_parser.reset(token)
    return None


class CommandParser(argparse.ArgumentParser):
    """Answers a wrong call with a `UsageError` that names the nearest option; every command takes `--debug`.

    `outcome` says in one sentence what a wrong call leads to, `hint` what to do where no option is near (default: see
    `--help`); `synonyms` maps options of other programs to ours.
    """

    def __init__(
        self,
        prog: str,
        outcome: str,
        hint: str | None = None,
        synonyms: Mapping[str, str] = MappingProxyType({}),
        **settings: Any,
    ) -> None:
        if "\n  " in settings.get("description", ""):  # it has examples, whose lines stay as they are
            settings["formatter_class"] = argparse.RawDescriptionHelpFormatter
        super().__init__(prog=prog, allow_abbrev=False, **settings)
        self._outcome = outcome
        self._synonyms = synonyms
        self._hint = hint or f"`{prog} --help` shows how."
        self.add_argument("--debug", action="store_true", help="show tracebacks of errors")

    def option(self, name: str, default: Any, text: str, **settings: Any) -> None:
        self.add_argument(name, default=default, help=f"{text} (default: {default})", **settings)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """As `parse_args`; options may be written with `_`. Raises UsageError (unknown or missing arguments)."""
        self._show_if_asked()
        return self.parse_args([_with_dashes(argument) for argument in argv])

    def parse_own(self, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """As `parse`, and what it does not know is returned in its order, for another parser."""
        self._show_if_asked()
        return self.parse_known_args([_with_dashes(argument) for argument in argv])

    def parse_with_train(self, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """As `parse_own`, where what is left is for `hvdtrain train`, which has --debug too."""
        options, rest = self.parse_own(argv)
        return options, [*rest, *(["--debug"] if options.debug else [])]

    def _show_if_asked(self) -> None:
        if _asks_for_parser.get():
            raise _ParserAsked(self)

    def _print_message(self, message: str, file: Any = None) -> None:
        """As argparse's, which says nothing where it cannot be printed."""
        print(message, end="", file=file or sys.stderr, flush=True)

    def error(self, message: str) -> NoReturn:
        options = [option for action in self._actions for option in action.option_strings]
        wrong = message.rpartition("unrecognized arguments: ")[2].split()
        name = wrong[0].partition("=")[0] if wrong and wrong[0].startswith("-") else ""
        meant = self._synonyms.get(name)
        near = (
            [meant] if meant in options else difflib.get_close_matches(name, [f for f in options if f[:2] == "--"], 1)
        )
        near = near or self._near_choice(message)
        # Of an option that is there, argparse has said what is wrong with its value.
        hint = f"`{self.prog} --help` tells what it takes." if message.startswith("argument ") else self._hint
        raise UsageError(
            f"`{self.prog}` was called incorrectly: {message}.",
            self._outcome,
            f"did you mean {near[0]}?" if near else hint,
        )

    def _near_choice(self, message: str) -> list[str]:
        """The nearest of an option's choices, where the message refuses a value that is none of them."""
        refused = re.match(r"argument ([\w/-]+): invalid choice: '([^']*)'", message)
        if refused is None:
            return []
        names = refused[1].split("/")
        choices = [str(choice) for a in self._actions if a.option_strings == names for choice in a.choices or ()]
        return difflib.get_close_matches(refused[2], choices, 1)


def _with_dashes(argument: str) -> str:
    option, equals, value = argument.partition("=")
    return option.replace("_", "-") + equals + value if argument.startswith("--") else argument
