"""Facts: whole numbers, each with what decided it, read from a table of variable names; contradictions are refused."""

from collections.abc import Mapping
from dataclasses import dataclass

from hvdtrain.errors import UsageError

EXPLAIN = "`hvdtrain env --explain` shows every variable seen; unset the one that another launcher left behind."

ASSUMED = "assumed: "
DERIVED = "derived: "

Env = Mapping[str, str]
Table = Mapping[str, tuple[str, ...]]  # fact name → the variables that may hold it; the first one that is set decides


@dataclass(frozen=True, slots=True)
class Fact:
    """A number and its source: "VARIABLE=value", "derived: …" or "assumed: …"."""

    value: int
    source: str

    @property
    def is_assumed(self) -> bool:
        return self.source.startswith(ASSUMED)


Facts = Mapping[str, Fact]


def read_table(table: Table, env: Env) -> Facts:
    """The facts whose variables are set; raises UsageError for one that is not a whole number."""
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


def require_consistent(facts: Facts) -> None:
    """Raise UsageError unless all six facts fit together: each number below its count, each node with a process."""
    for name in ("size", "local_size", "num_nodes"):
        if facts[name].value < 1:
            raise _conflict(facts, name, "It must be 1 or more.")
    for name, bound in (("rank", "size"), ("local_rank", "local_size"), ("node_rank", "num_nodes")):
        if facts[name].value >= facts[bound].value:
            raise _conflict(facts, name, f"It must be less than {bound}, {_cited(facts, bound)}.")
    size, local_size, num_nodes = (facts[name].value for name in ("size", "local_size", "num_nodes"))
    if num_nodes == 1 and local_size != size:
        raise _conflict(facts, "local_size", f"One node holds all {_cited(facts, 'size')} processes.")
    if local_size + num_nodes - 1 > size:
        nodes = f"{_cited(facts, 'num_nodes')} nodes with one process or more each"
        raise _conflict(facts, "local_size", f"With {nodes}, that is more than the size, {_cited(facts, 'size')}.")


def _cited(facts: Facts, name: str) -> str:
    return f"{facts[name].value} ({facts[name].source})"


def _conflict(facts: Facts, name: str, conflict: str) -> UsageError:
    return UsageError(f"{name} is {_cited(facts, name)}.", conflict, EXPLAIN)
