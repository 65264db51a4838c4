"""What the loop asks of a framework."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from data_sharding import LoadedBatch
from hvdtrain.state import State


@dataclass(frozen=True)
class Sums:
    """This rank's totals since the last reading.

    Attributes:
        values: for each of the task's measures, its sum over this rank's real samples.
        allreduce_seconds: how long steps stood still waiting for gradients of other ranks.
        skipped: updates that were left out because their scaled gradients were not finite; the same on all ranks.
        grad_norm: mean norm of the reduced gradients before clipping over the updates, where clipping or loss scaling
            asked for it anyway; with local SGD that of this rank's own gradients.
        grad_norm_peak: the largest of these norms; None where grad_norm is.
    """

    values: dict[str, float]
    allreduce_seconds: float
    skipped: int = 0
    grad_norm: float | None = None
    grad_norm_peak: float | None = None


class Adapter(Protocol):
    """One model in training, in one framework, on one rank. Steps return before the device has finished them."""

    def train_step(self, batch: LoadedBatch, step: int, lr: float) -> None:
        """One update with the gradient of the mean loss over the global batch. Collective.

        Args:
            batch: this rank's slice of the global batch.
            step: the update's number since the start of training, from 0; random numbers depend on it.
            lr: the learning rate of this update.
        """
        ...

    def eval_step(self, batch: LoadedBatch) -> None:
        """Measure without training. Not collective."""
        ...

    def evaluating(self) -> AbstractContextManager[None]:
        """Inside, `eval_step` measures the weights that are validated: an average of them, where one is kept."""
        ...

    def read_sums(self) -> Sums:
        """Totals since the last call, waiting for the device; resets them."""
        ...

    def state(self) -> State:
        """A copy of everything that training changes, in host memory."""
        ...

    def load_state(self, state: State) -> None:
        """Put back what `state` returned, here or on another rank: optimizer first, weights after."""
        ...

    def rank_local_state(self) -> State:
        """Float arrays that each rank makes from its own samples, whose mean stands for all: BatchNorm's statistics.

        Collective: what is better made equal on the device, weights that ranks update by themselves, is so afterwards.
        """
        ...

    def load_rank_local_state(self, buffers: State) -> None:
        """Put back what `rank_local_state` returned, changed or not."""
        ...

    def parameter_count(self) -> int:
        """Trainable parameters."""
        ...
