"""Make a Keras 3 optimizer apply gradients that are reduced over ranks.

Keras applies gradients through `optimizer.apply(...)`. That method is replaced on the one object, not in a
subclass: the optimizer stays a `keras.optimizers.SGD`, so a saved model names `SGD` and loads anywhere, state
that the optimizer already has is kept, and callbacks that set `learning_rate` see nothing new. Everything that
Keras does inside `apply` (clipping, weight decay, accumulation, EMA, loss scale) works on reduced gradients.
"""

from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as horovod
import keras

from hvdtrain.adapters.keras.gradients import Compression, Op, reduce_gradients
from hvdtrain.errors import UsageError, did_you_mean
from hvdtrain.keras.runtime import require_init

_OPS = ("average", "sum")
_COMPRESSIONS = (None, "fp16", "bf16")


class ReducingApply:
    """Replaces one optimizer's `apply`.

    Attributes:
        calls: how often Keras has called it; inside a compiled step once per trace.
    """

    def __init__(self, optimizer: Any, op: Op, compression: Compression) -> None:
        self._optimizer = optimizer
        self._apply_locally = optimizer.apply
        self._op = op
        self._compression = compression
        self.calls = 0

    def __call__(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        grads = list(grads)
        # Keras lets callers of a built optimizer leave the variables out.
        of = self._optimizer._trainable_variables if trainable_variables is None else list(trainable_variables)
        reduced = reduce_gradients(grads, of, op=self._op, compression=self._compression)
        self.calls += 1
        self._apply_locally(reduced, trainable_variables)


def DistributedOptimizer(optimizer: Any, op: Op = "average", compression: Compression = None) -> Any:  # noqa: N802 (Horovod's name)
    """Make this optimizer reduce gradients over all ranks before it applies them.

    Args:
        optimizer: a `keras.optimizers.Optimizer`, new or in use; it is changed in place. For mixed precision wrap
            the optimizer in `keras.optimizers.LossScaleOptimizer` first and give that.
        op: "average" is the mean over ranks (the loss's mean over the global batch if all ranks' batches are
            equally large), "sum" the sum.
        compression: "fp16" halves what travels; "bf16" too, with fewer digits and the range of float32; None sends
            gradients as they are.

    With `gradient_accumulation_steps` every micro batch's gradient is reduced: the result is exact, the traffic
    is not saved.

    Returns:
        The optimizer that was given.

    Raises:
        UsageError: before `hvd.init()`, for an optimizer that is distributed already, for one that Keras would
            wrap in its own loss scaling, and for an unknown `op` or `compression`.
    """
    require_init("hvd.DistributedOptimizer")
    _require_known(op=(op, _OPS), compression=(compression, _COMPRESSIONS))
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise UsageError(
            f"hvd.DistributedOptimizer was given {optimizer!r}.",
            "It changes an optimizer object and has no object here.",
            "give it an instance such as keras.optimizers.SGD(0.01).",
        )
    _refuse_wrapped_twice(optimizer)
    mixed = keras.config.dtype_policy().name == "mixed_float16"
    if mixed and not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise _loss_scale_outside()
    # Not by setattr: Keras' and TensorFlow's attribute tracking would take it for state to be saved.
    vars(optimizer)["apply"] = ReducingApply(optimizer, op, compression)
    return optimizer


def reduction_of(optimizer: Any) -> ReducingApply | None:
    """What `DistributedOptimizer` put into this optimizer, or None if it is a plain one."""
    apply = vars(optimizer).get("apply")
    return apply if isinstance(apply, ReducingApply) else None


def require_distributed(optimizer: Any) -> ReducingApply:
    """The optimizer's reduction.

    Raises:
        UsageError: if gradients would not be reduced, or only after loss scaling looked at one rank's.
    """
    reduction = reduction_of(optimizer)
    if reduction is not None:
        return reduction
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) and reduction_of(optimizer.inner_optimizer):
        raise _loss_scale_outside()
    raise UsageError(
        f"The model is compiled with a plain {type(optimizer).__name__}, but there are {horovod.size()} workers.",
        "Every worker would train a model of its own.",
        "compile it with optimizer=hvd.DistributedOptimizer(...); after loading a model use hvd.load_model.",
    )


def load_model(filepath: str, *, op: Op = "average", compression: Compression = None, **options: Any) -> Any:
    """`keras.models.load_model`, with the loaded optimizer and its state made distributed again.

    A saved model does not say that it was trained by several ranks, so that it loads without hvdtrain.

    Args:
        filepath: what `model.save` wrote.
        op, compression: as for `DistributedOptimizer`.
        options: passed on to `keras.models.load_model`.
    """
    require_init("hvd.load_model")
    model = keras.models.load_model(filepath, **options)
    if model.optimizer is not None:
        DistributedOptimizer(model.optimizer, op, compression)
    return model


def _require_known(**arguments: tuple[str | None, Sequence[str | None]]) -> None:
    for argument, (value, valid) in arguments.items():
        if value not in valid:
            raise UsageError(
                f"hvd.DistributedOptimizer has no {argument}={value!r}.",
                "Gradients would not be reduced as asked.",
                did_you_mean(str(value), filter(None, valid)),
            )


def _refuse_wrapped_twice(optimizer: Any) -> None:
    if reduction_of(optimizer) is not None:
        raise UsageError(
            f"This {type(optimizer).__name__} is distributed already.",
            "Gradients would be reduced twice.",
            "call hvd.DistributedOptimizer once for each optimizer.",
        )
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None and reduction_of(inner) is not None:
        raise _loss_scale_outside()


def _loss_scale_outside() -> UsageError:
    return UsageError(
        "Loss scaling sits, or with the policy mixed_float16 would be put by Keras, around the distributed optimizer.",
        "Each rank would skip steps by its own gradients, and the ranks would wait for each other forever.",
        "write hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer)).",
    )
