"""The optimizers of a model: the compiled one, and those that a model with a train_step of its own keeps (GANs)."""

from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as horovod
import keras

from hvdtrain.comm.messages import gather_json
from hvdtrain.errors import UsageError
from hvdtrain.keras.runtime import communicator
from hvdtrain.tensorflow.optimizer import reduction_of, require_distributed


class UsedOptimizers:
    """Finds a model's optimizers among its attributes, in the order of their names.

    Args: `model`: a compiled model.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        kept = {name: v for name, v in sorted(vars(model).items()) if isinstance(v, keras.optimizers.Optimizer)}
        others = [optimizer for optimizer in kept.values() if optimizer is not model.optimizer]
        self._distributed = [optimizer for optimizer in others if reduction_of(optimizer) is not None]
        self._plain = [optimizer for optimizer in others if reduction_of(optimizer) is None]
        if model.optimizer is not None:
            distributed = reduction_of(model.optimizer) is not None or not self._distributed
            (self._distributed if distributed else self._plain).insert(0, model.optimizer)
        self._updates_before = self._plain_updates()

    def require_distributed(self) -> None:
        """Raise `UsageError` unless gradients of at least one are reduced, rightly."""
        for optimizer in self._distributed or [self._model.optimizer]:
            require_distributed(optimizer)

    def build(self) -> None:
        """Make the state of the compiled optimizer, if it is one that is used: the others' variables are not known."""
        optimizer = self._model.optimizer
        if optimizer in self._distributed and not optimizer.built:
            optimizer.build(self._model.trainable_variables)

    def variables(self) -> list[Any]:
        """The state of those that are used, as far as it is made; it begins with equal values on all ranks."""
        return [variable for optimizer in self._distributed for variable in optimizer.variables]

    def learning_rates(self) -> list[float | None]:
        """Of those that are used; None for one whose rate is computed, by a schedule or a function."""
        variables = map(_rate_variable, self._distributed)
        return [None if variable is None else float(variable) for variable in variables]

    def set_learning_rates(self, rates: Sequence[float | None]) -> None:
        """Args: `rates`: as `learning_rates` gives them, on another rank."""
        for optimizer, rate in zip(self._distributed, rates, strict=False):  # others are refused before the first step
            variable = _rate_variable(optimizer)
            if rate is not None and variable is not None:
                variable.assign(rate)

    def require_equal_rates(self) -> None:
        """Raise `UsageError`, on all ranks, if ranks would update with other learning rates. Collective."""
        by_rank = gather_json(communicator(), self.learning_rates(), "hvdtrain.keras.rates")
        if all(rates == by_rank[0] for rates in by_rank):
            return
        shown = [
            f"rank {rank}: {', '.join(f'{rate:g}' for rate in rates if rate is not None)}"
            for rank, rates in enumerate(by_rank)
        ]
        raise UsageError(
            f"The ranks' learning rates differ: {'; '.join(shown)}.",
            "They would update one model in different ways. A callback such as ReduceLROnPlateau has looked at metrics "
            "of its own rank.",
            "put hvd.callbacks.MetricAverageCallback() before it in the list of callbacks.",
        )

    def calls(self) -> int:
        """How often Keras has called the reduction of any."""
        reductions = [reduction_of(optimizer) for optimizer in self._distributed]
        return sum(reduction.calls for reduction in reductions if reduction is not None)

    def refuse_plain_updates(self) -> None:
        """Raise `UsageError` if an optimizer that is not distributed has changed weights."""
        for optimizer, before, now in zip(self._plain, self._updates_before, self._plain_updates(), strict=True):
            if now > before:
                raise UsageError(
                    f"The training step applied gradients through a plain {type(optimizer).__name__}, but there are "
                    f"{horovod.size()} workers.",
                    "Every worker would train a model of its own.",
                    "give hvd.DistributedOptimizer(...) for each optimizer of the model.",
                )

    def _plain_updates(self) -> list[int]:
        return [int(optimizer.iterations) for optimizer in self._plain]


def _rate_variable(optimizer: Any) -> keras.Variable | None:
    rate = getattr(optimizer, "inner_optimizer", optimizer)._learning_rate
    return rate if isinstance(rate, keras.Variable) else None
