"""How far a run goes, and how often it stops to look."""

from __future__ import annotations

from dataclasses import dataclass

from hvdtrain.errors import HvdtrainError


@dataclass(frozen=True)
class RunLimits:
    """How far and how often.

    Attributes:
        epochs: passes over the training data.
        max_steps: stop (with a checkpoint) after this many updates since the start of training; None: no limit.
        log_interval: updates between two `Logged`.
        checkpoint_interval: updates between two checkpoints inside an epoch; 0: only at the end of each epoch.
        max_masked: share of a data set's records that may be left out as damaged in one pass.
    """

    epochs: int
    max_steps: int | None = None
    log_interval: int = 50
    checkpoint_interval: int = 0
    max_masked: float = 1.0

    def last_step(self, total: int) -> int:
        """The update after which a run ends whose epochs have `total` updates."""
        return total if self.max_steps is None else min(total, self.max_steps)

    def saves_after(self, step: int) -> bool:
        """Whether a checkpoint is due inside an epoch."""
        return bool(self.checkpoint_interval) and step % self.checkpoint_interval == 0

    def logs_after(self, step: int) -> bool:
        """Whether a `Logged` is due: the first step of all says how long a step takes."""
        return step == 1 or step % self.log_interval == 0 or self.saves_after(step)

    def require_few_masked(self, masked: int, records: int, what: str) -> None:
        """`masked` is reduced, so all ranks raise or none does."""
        if masked > self.max_masked * records:
            raise HvdtrainError(
                f"{masked} of the {records} {what} records are damaged and were skipped.",
                f"That is more than the share of {self.max_masked:g} that --data.max-corrupt allows.",
                "restore the files (the log names each record), or allow a larger share.",
            ).on_all_ranks()
