"""Gradients of all ranks added up, in Keras: of one rank there is nothing to add."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import tensorflow as tf

from hvdtrain.adapters.keras.comm_hooks.choice import open_comm_hook
from hvdtrain.adapters.keras.gradients import exchange_gradients
from hvdtrain.adapters.keras.waiting import Waiting
from hvdtrain.adapters.stateless import StatelessGradientSync
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.state import State


@final
class NoSync(StatelessGradientSync):
    """One process: nothing to exchange, and dense gradients as with many ranks. It needs no Horovod."""

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:  # noqa: ARG002
        return [gradient if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]

    def waited(self) -> float:
        return 0.0


@final
class SummedGradients:
    """Each rank's gradient is its part of the global batch's, and their sum is the whole; or as the wire has it.

    Args:
        variables: all that are trained, in the order in which their gradients will come.
        options: which wire is taken.
        alone: one process, without Horovod, takes the wire too.
    """

    def __init__(
        self,
        variables: Sequence[Any] = (),
        options: TrainingOptions = TrainingOptions(),  # noqa: B008  frozen
        alone: bool = False,
    ) -> None:
        self._wire = open_comm_hook(variables, options, alone)
        self.loss_multiplier = self._wire.loss_multiplier
        self._waiting = Waiting()

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        return self._waiting.over(gradients, lambda: exchange_gradients(gradients, variables, self._wire))

    def after_update(self, step: int) -> None:
        pass

    def average_weights(self) -> None:
        pass

    def waited(self) -> float:
        return self._waiting.read()

    def rank_local_state(self) -> State:
        return self._wire.rank_local_state()

    def load_rank_local_state(self, arrays: State) -> None:
        self._wire.load_rank_local_state(arrays)

    def state(self) -> State:
        return self._wire.state()

    def load_state(self, state: State) -> None:
        self._wire.load_state(state)
