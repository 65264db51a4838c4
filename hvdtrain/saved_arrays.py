"""Whether named arrays out of a checkpoint are those that are needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from hvdtrain.errors import UsageError


class Shaped(Protocol):
    """An array, or what has its shape."""

    @property
    def shape(self) -> tuple[int, ...]: ...


def require_fit(
    saved: Mapping[str, Shaped],
    needed: Mapping[str, tuple[int, ...]],
    fact: str,
    hint: str = "build the model with the options it was saved with, or train from the start with --resume never.",
) -> None:
    """Raise `UsageError`, with `fact` and the names, unless names and shapes are the needed ones."""
    wrong = sorted(saved.keys() ^ needed.keys())
    wrong += sorted(n for n in saved.keys() & needed.keys() if tuple(saved[n].shape) != needed[n])
    if wrong:
        some = ", ".join(wrong[:5]) + (" …" if len(wrong) > 5 else "")
        raise UsageError(fact, f"Missing, unexpected or of another shape: {some}.", hint)
