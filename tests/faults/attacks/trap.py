"""A file that is there only if an attack's code was executed, and attacks that make it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Trap:
    """Attributes: `mark`: the file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        """Whoever unpickles a trap makes its mark."""
        return Path.touch, (self.mark,)

    @property
    def pickled(self) -> bytes:
        return pickle.dumps(self, protocol=2)

    @property
    def command(self) -> str:
        """For a shell."""
        return f"touch {self.mark}"

    def require_sprung_by(self, unguarded: Callable[[], object]) -> None:
        """The attack works on who has no guard; set the trap again."""
        unguarded()
        assert self.mark.exists(), "the attack does not work, so that its test shows nothing"
        self.mark.unlink()

    def require_unsprung(self) -> None:
        assert not self.mark.exists(), "the attack's code was executed"
