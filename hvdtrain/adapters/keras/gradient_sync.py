"""The sum of all ranks' gradients in Keras, and what the adapter requires of any other way to synchronize ranks."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvdtrain.adapters.choose_sync import ChosenSync, require_adasum
from hvdtrain.adapters.keras.comm_hooks import REDUCTIONS, Adasum, CommHook
from hvdtrain.adapters.keras.gradients import grouped, reduce_by_hook
from hvdtrain.adapters.keras.graph_clock import Waiting
from hvdtrain.adapters.keras.powersgd import PowerSgd
from hvdtrain.adapters.keras.update import global_norm
from hvdtrain.adapters.sync_state import SyncState


class GradientSync(SyncState, ABC):
    """The gradients, or the weights, of one rank together with those of the others."""

    @abstractmethod
    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """What the optimizer needs for each variable that is `updated`. Called while the step is traced; collective
        when it runs."""

    def first_sent(self) -> list[int]:
        """Which gradients, by their places, are in the message that usually begins first; [] where nobody knows."""
        return []

    def updated(self, variables: Sequence[Any]) -> Sequence[Any]:
        return variables

    def total_norm(self, gradients: Sequence[Any]) -> Any:
        """The norm of all gradients together, given those of what is `updated`; None is nothing. As `reduce`."""
        return global_norm(gradients)

    def distribute(self) -> None:
        """The optimizer has changed what is `updated`: make that the weights of all ranks. As `reduce`."""


class NoSync(GradientSync):
    """One process: no communication, and dense gradients as with many ranks. It needs no Horovod."""

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:  # noqa: ARG002
        return [gradient if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]


class SummedGradients(GradientSync):
    """Sums the gradients of all ranks, which are parts of the global batch's gradient; a comm hook may change the rule.

    Args:
        variables: all whose gradients may be summed, in the model's order.
        hook: None: that which was chosen.

    Raises `UsageError`: Horovod has no such op here.
    """

    def __init__(
        self, variables: Sequence[Any], chosen: ChosenSync, waiting: Waiting, hook: CommHook | None = None
    ) -> None:
        self._hook = hook or _open_hook(variables, chosen)
        super().__init__(self._hook)
        self._waiting, self._variables, self._cap = waiting, variables, chosen.bucket_bytes

    def buckets(self, cap: int) -> tuple[int, ...]:
        return tuple(len(group) for group in self._grouped(cap))

    def first_sent(self) -> list[int]:
        """The bucket that is full first: the one whose first layer is behind those of the others."""
        return max(self._grouped(self._cap), key=min, default=[])

    def _grouped(self, cap: int) -> list[list[int]]:
        """The places of the variables in each bucket."""
        places, variables = reversed(range(len(self._variables))), self._variables
        return grouped(places, self._hook, lambda i: tf.as_dtype(variables[i].dtype), lambda i: variables[i].shape, cap)

    def set_bucket_cap(self, cap: int) -> None:
        self._cap = cap

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        return self._waiting.over(gradients, lambda: reduce_by_hook(gradients, variables, self._hook, self._cap))


def _open_hook(variables: Sequence[Any], chosen: ChosenSync) -> CommHook:
    if chosen.ranks == 1:
        return PowerSgd(lambda flat, _name: flat, variables, chosen)
    import horovod.tensorflow as hvd

    def summed(flat: Any, name: str) -> Any:
        return hvd.allreduce(flat, op=hvd.Sum, name=name, ignore_name_scope=True)

    match chosen.hook:
        case "adasum":
            require_adasum(hvd, on_gpu=bool(tf.config.get_visible_devices("GPU")))
            return Adasum(hvd)
        case "powersgd":
            return PowerSgd(summed, variables, chosen)
        case _:
            return REDUCTIONS[chosen.hook](hvd, chosen.loss_multiplier)


class GradientSum:
    """Gradients of several micro batches, added up between graphs. Called while steps are traced."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self._sums = [tf.Variable(tf.zeros_like(v.value), trainable=False) for v in variables]

    def add(self, gradients: Sequence[Any]) -> None:
        for total, gradient in zip(self._sums, gradients, strict=True):
            if gradient is not None:
                total.assign_add(tf.convert_to_tensor(gradient))

    def take(self, gradients: Sequence[Any]) -> list[Any]:
        """The sum with the last micro batch's gradients, and begin again. None stays None: it is so in all of them."""
        sums = [
            None if gradient is None else total + tf.convert_to_tensor(gradient)
            for total, gradient in zip(self._sums, gradients, strict=True)
        ]
        with tf.control_dependencies([s for s in sums if s is not None]):
            for total in self._sums:
                total.assign(tf.zeros_like(total))
        return sums
