"""Where training stands: all that a resumed run must know besides weights and optimizer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Position:
    """Equal on all ranks, and independent of how many they are.

    Attributes:
        step: updates done since the start of training; with the plan this says which record comes next.
        samples_seen: real (unmasked) samples in those updates, over all ranks.
    """

    step: int = 0
    samples_seen: int = 0

    def after(self, global_weight: float) -> Position:
        """The position one update later, whose global batch held `global_weight` real samples."""
        return Position(self.step + 1, self.samples_seen + int(global_weight))
