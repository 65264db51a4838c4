"""Horovod's own exchange of gradients, for comparison."""

from typing import Any

import torch

from hvdtrain.adapters.torch.buckets import Trainable
from hvdtrain.adapters.torch.gradient_sync import NoSync


class HorovodGradients(NoSync):
    """Sums each gradient by a message of its own, in the hooks of `hvd.DistributedOptimizer`; Horovod fuses messages.

    A parameter that no rank's loss has used gets zeros, as Horovod has it, unless it is frozen.

    The update is made by the adapter's optimizer: Horovod's wraps one that is never stepped.

    Args:
        accumulate_steps: backward passes of an update.
    """

    fixed_by = "--gradient-sync horovod"

    def __init__(self, trainable: Trainable, accumulate_steps: int, loss_multiplier: float) -> None:
        import horovod.torch as hvd

        super().__init__(trainable)
        self.loss_multiplier = loss_multiplier
        self._optimizer: Any = hvd.DistributedOptimizer(
            torch.optim.SGD(self._trainable, lr=0.0),
            named_parameters=trainable,
            op=hvd.Sum,
            backward_passes_per_step=accumulate_steps,
            sparse_as_dense=True,
        )

    def finish(self) -> None:
        self._optimizer.synchronize()
        super().finish()
        for parameter in self._trainable:
            if not parameter.requires_grad:
                parameter.grad = None
