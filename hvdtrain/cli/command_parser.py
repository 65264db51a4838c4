"""What the commands' parsers have in common: how a wrong call is answered, and how flags may be spelled."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import Any, NoReturn

from hvdtrain.errors import UsageError


class CommandParser(argparse.ArgumentParser):
    """Answers a wrong call with a `UsageError` that names the nearest flag; every command takes `--debug`.

    Args:
        prog: the command as users write it.
        outcome: one sentence, what a wrong call leads to.
        hint: what to do where no flag is near; left out: see `--help`.
        settings: further arguments of `ArgumentParser`.
    """

    def __init__(self, prog: str, outcome: str, hint: str | None = None, **settings: Any) -> None:
        super().__init__(prog=prog, allow_abbrev=False, **settings)
        self._outcome = outcome
        self._hint = hint or f"`{prog} --help` shows how."
        self.add_argument("--debug", action="store_true", help="show tracebacks of errors")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """As `parse_args`; flags may be written with `_`.

        Raises:
            UsageError: unknown or missing arguments.
        """
        return self.parse_args([_with_dashes(argument) for argument in argv])

    def parse_own(self, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """As `parse`, and what it does not know is returned in its order, for another parser."""
        return self.parse_known_args([_with_dashes(argument) for argument in argv])

    def error(self, message: str) -> NoReturn:
        flags = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
        wrong = message.rpartition("unrecognized arguments: ")[2].split()
        near = difflib.get_close_matches(wrong[0], flags, 1) if wrong and wrong[0].startswith("-") else []
        # Of a flag that is there, argparse has said what is wrong with its value.
        hint = f"`{self.prog} --help` tells what it takes." if message.startswith("argument ") else self._hint
        raise UsageError(
            f"`{self.prog}` was called wrongly: {message}.",
            self._outcome,
            f"did you mean {near[0]}?" if near else hint,
        )


def _with_dashes(argument: str) -> str:
    flag, equals, value = argument.partition("=")
    return flag.replace("_", "-") + equals + value if argument.startswith("--") else argument
