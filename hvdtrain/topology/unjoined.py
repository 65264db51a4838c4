"""Platforms whose variables tell of other processes, but not of a place among them: refused, never "rank 0 of 1"."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from hvdtrain.errors import UsageError
from hvdtrain.topology.facts import Env

ALONE = "to train in this process alone, set HOROVOD_RANK=0 and HOROVOD_SIZE=1"
"""The end of a HINT: these two are asked first, so that they decide wherever they are set."""


@dataclass(frozen=True)
class Unjoined:
    """Stands among the readers, and refuses where `Reader` reads.

    Args:
        platform: for people, as `Reader`'s.
        variables: what `explain` shows.
        others: one sentence on the other processes, or None where the variables tell of none.
        hint: how to start the job instead.
    """

    platform: str
    variables: tuple[str, ...]
    others: Callable[[Env], str | None]
    hint: str

    def seen(self, env: Env) -> dict[str, str]:
        """The platform's variables that are set."""
        return {name: env[name] for name in self.variables if name in env}

    def applies(self, env: Env) -> bool:
        """Whether the variables tell of other processes."""
        return self.others(env) is not None

    def outside(self, env: Env) -> str | None:
        """Why the variables do not describe this process although they are set, or None when they do."""
        return None if self.applies(env) else "they tell of no other process"

    def read(self, env: Env) -> NoReturn:
        """Raises UsageError."""
        conflict = "Each of these processes would train a model of its own."
        raise UsageError(str(self.others(env)), conflict, f"{self.hint}; {ALONE}.")
