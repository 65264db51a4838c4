"""SGD with momentum and weight decay as torch computes it, in Keras."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops


class TorchSGD(keras.optimizers.SGD):  # type: ignore[misc]  # Keras has no types
    """The update of torch.optim.SGD, so that both frameworks train alike.

    Keras' own differs in two ways: its weight decay shrinks weights by lr · decay beside the gradient step, without
    momentum, which at a momentum of 0.9 decays ten times less; and its momentum buffer holds steps in the place of
    gradients, so that a warm-up still pays off earlier steps at their old learning rate (Goyal et al. 2017,
    arXiv:1706.02677, remark 2). Here: g = gradient + decay · w; m = momentum · m + g; w -= lr · m.

    Args:
        learning_rate: set anew before each step.
        momentum: share of the buffer that stays.
        coupled_decay: the decay above.
    """

    def __init__(self, learning_rate: float, momentum: float, coupled_decay: float) -> None:
        super().__init__(learning_rate, momentum=momentum)
        self._coupled_decay = coupled_decay

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        buffer = self.momentums[self._get_variable_index(variable)]
        gradient = ops.cast(gradient, variable.dtype) + self._coupled_decay * variable
        self.assign(buffer, buffer * self.momentum + gradient)
        self.assign_sub(variable, ops.cast(learning_rate, variable.dtype) * buffer)
