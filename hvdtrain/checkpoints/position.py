"""Where training stands: all that a resumed run must know besides weights and optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hvdtrain.algorithms.early_stopping import ValidationHistory


@dataclass(frozen=True, slots=True)
class Position:
    """Equal on all ranks, and independent of how many they are.

    Attributes:
        step: updates done since the start of training; with the plan this says which record comes next.
        samples_seen: real (unmasked) samples in those updates, over all ranks.
        standing: how the validations at the ends of epochs have gone.
    """

    step: int = 0
    samples_seen: int = 0
    standing: ValidationHistory = ValidationHistory()

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Position:
        """What `dataclasses.asdict` made of one; checkpoints of earlier versions have no standing."""
        standing = fields.get("standing")
        known = ValidationHistory.from_json(standing) if standing is not None else ValidationHistory()
        return cls(int(fields["step"]), int(fields["samples_seen"]), known)

    def after(self, global_weight: float) -> Position:
        """The position one update later, whose global batch held `global_weight` real samples."""
        return replace(self, step=self.step + 1, samples_seen=self.samples_seen + int(global_weight))
