"""Prints every page of help as JSON: the words of a command → what it prints. Run with and without `python -OO`."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
from collections.abc import Iterator, Mapping

from hvdtrain.cli.command_parser import Run
from hvdtrain.cli.launch import BUILT_IN
from hvdtrain.cli.main import COMMANDS, main


def commands(table: Mapping[str, tuple[str | Run, str]]) -> Iterator[list[str]]:
    """The words of each command in the table of a module, and of those below it."""
    for name, (module, _) in table.items():
        yield [name]
        below = getattr(importlib.import_module(module), "COMMANDS", {}) if isinstance(module, str) else {}
        yield from ([name, *words] for words in commands(below))


def page(argv: list[str]) -> str:
    """What the command prints, and its exit code."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            code = main(argv)
        except SystemExit as end:
            code = int(end.code or 0)
    return f"{printed.getvalue()}exit code {code}"


if __name__ == "__main__":
    words = [[], *commands(COMMANDS), *(["launch", name] for name in BUILT_IN)]
    argvs = [*([*one, "--help"] for one in words), ["--help-all"], ["train", "--help-all"], ["--print-config"]]
    pages = {" ".join(argv): page(argv) for argv in argvs}
    json.dump({"optimize": sys.flags.optimize, "pages": pages}, sys.stdout)
