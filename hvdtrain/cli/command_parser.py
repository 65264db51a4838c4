"""What the commands' parsers have in common: how a wrong call is answered, and how flags may be spelled."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

from hvdtrain.errors import UsageError


class CommandParser(argparse.ArgumentParser):
    """Answers a wrong call with a `UsageError` that names the nearest flag; every command takes `--debug`.

    Args:
        prog: the command as users write it.
        outcome: one sentence, what a wrong call leads to.
        hint: what to do where no flag is near; default: see `--help`.
        synonyms: flags of other programs, and what they are here.
        settings: further arguments of `ArgumentParser`.
    """

    def __init__(
        self,
        prog: str,
        outcome: str,
        hint: str | None = None,
        synonyms: Mapping[str, str] = MappingProxyType({}),
        **settings: Any,
    ) -> None:
        super().__init__(prog=prog, allow_abbrev=False, **settings)
        self._outcome = outcome
        self._synonyms = synonyms
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
        own = [flag for action in self._actions for flag in action.option_strings]
        wrong = message.rpartition("unrecognized arguments: ")[2].split()
        name = wrong[0].partition("=")[0] if wrong and wrong[0].startswith("-") else ""
        meant = self._synonyms.get(name)
        near = [meant] if meant in own else difflib.get_close_matches(name, [f for f in own if f[:2] == "--"], 1)
        # Of a flag that is there, argparse has said what is wrong with its value.
        hint = f"`{self.prog} --help` tells what it takes." if message.startswith("argument ") else self._hint
        raise UsageError(
            f"`{self.prog}` was called incorrectly: {message}.",
            self._outcome,
            f"did you mean {near[0]}?" if near else hint,
        )


def _with_dashes(argument: str) -> str:
    flag, equals, value = argument.partition("=")
    return flag.replace("_", "-") + equals + value if argument.startswith("--") else argument
