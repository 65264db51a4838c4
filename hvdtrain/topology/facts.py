"""Facts: whole numbers, each with what decided it, read from a table of variable names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hvdtrain.errors import UsageError

ASSUMED = "assumed: "
DERIVED = "derived: "

Env = Mapping[str, str]
Table = Mapping[str, tuple[str, ...]]
"""Fact name → the variables that may hold it; the first one that is set decides."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A number and its source: "VARIABLE=value", "derived: …" or "assumed: …"."""

    value: int
    source: str

    @property
    def is_assumed(self) -> bool:
        """Whether nothing but a guess stands behind it."""
        return self.source.startswith(ASSUMED)


Facts = Mapping[str, Fact]


def read_table(table: Table, env: Env) -> Facts:
    """The facts whose variables are set; raises UsageError for one that is no whole number."""
    facts = {}
    for name, variables in table.items():
        variable = next((v for v in variables if v in env), None)
        if variable is not None:
            facts[name] = Fact(_whole_number(variable, env[variable]), f"{variable}={env[variable]}")
    return facts


def _whole_number(variable: str, text: str) -> int:
    # int() alone would also take "1_000", " 3" and other scripts' digits, which no launcher writes.
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise UsageError(
            f"{variable} is {text!r}.",
            "Ranks and sizes are whole numbers, 0 or more, of at most nine digits.",
            f"unset {variable}, or let the launcher set it.",
        )
    return int(text)
