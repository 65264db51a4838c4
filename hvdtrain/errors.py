"""Every error that hvdtrain raises on purpose.

    HvdtrainError            exit code 1   something failed while running
    ├── UsageError           exit code 2   the user asked for what cannot be done; nothing was trained or overwritten
    ├── PeerError            exit code 1   another rank ended; its own message says why
    └── DivergenceError      exit code 1   ranks that must be equal are not

An error is one sentence of fact, one of conflict, and one HINT that says what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    from typing import Self  # Python 3.10 does not have it, and must get as far as its refusal


RESUMABLE = 75
"""Exit code: training stopped early with a checkpoint, and the same command continues it. EX_TEMPFAIL of sysexits.h."""


class HvdtrainError(Exception):
    """Base of all our errors.

    Args:
        fact: one sentence, what is the case.
        conflict: one sentence, why that cannot work.
        hint: one sentence, what the user can do.
    """

    exit_code = 1
    failure_kind: ClassVar[Literal["error", "wrong_worker"]] = "error"  # of the record that it leaves for the launcher
    joint = False
    """Whether every rank raises this one together, from reduced values; rank 0's message is then enough."""

    def __init__(self, fact: str, conflict: str, hint: str) -> None:
        super().__init__(fact, conflict, hint)
        self.fact = fact
        self.conflict = conflict
        self.hint = hint

    def on_all_ranks(self) -> Self:
        """Mark as raised by every rank together."""
        self.joint = True
        return self

    def __str__(self) -> str:
        return f"{self.fact} {self.conflict}\nHINT: {self.hint}"


class UsageError(HvdtrainError):
    """Wrong option, config, environment, input data or task; found before the first training step where it can be."""

    exit_code = 2


class PeerError(HvdtrainError):
    """A collective ended because another rank did."""


class DivergenceError(HvdtrainError):
    """Ranks that must hold the same values do not."""


class WrongWorkerError(DivergenceError):
    """It is this rank that computes something else than the others."""

    failure_kind = "wrong_worker"


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """The end of a HINT: the nearest valid name, if one is near, and all valid names."""
    names = sorted(valid)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    suggestion = f"did you mean {near[0]!r}? " if near else ""
    return f"{suggestion}Valid: {', '.join(names)}."


class MissingNameError(UsageError, AttributeError):
    """A module has no such name."""


def missing_name(module: str, name: str, names: Iterable[str], instead: str = "") -> AttributeError:
    """The error for `module.name`. Args: `instead`: one more way out. Names with underscores get Python's own error."""
    if name.startswith("_"):
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    hint = did_you_mean(name, names)
    return MissingNameError(
        f"{module} has no {name}.",
        "The program would call something that does not exist.",
        f"{hint[:-1]}; {instead}." if instead else hint,
    )
