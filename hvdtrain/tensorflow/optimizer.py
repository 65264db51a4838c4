"""Make a Keras 3 optimizer apply gradients that are reduced over ranks.

Keras applies gradients through `optimizer.apply(...)`. That method is replaced on the one object, not in a
subclass: the optimizer stays a `keras.optimizers.SGD`, so a saved model names `SGD` and loads anywhere, state
that the optimizer already has is kept, and callbacks that set `learning_rate` see nothing new. Everything that
Keras does inside `apply` (clipping, weight decay, accumulation, EMA, loss scale) works on reduced gradients.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import horovod.tensorflow as horovod
import keras
import tensorflow as tf

from hvdtrain.adapters.keras.gradients import densified
from hvdtrain.errors import UsageError, did_you_mean
from hvdtrain.tensorflow.gradient_reduction import GradientReduction
from hvdtrain.tensorflow.gradient_tape import newer_groups
from hvdtrain.tensorflow.reduced_sources import ReducedSources, local_variables
from hvdtrain.tensorflow.start import require_init
from hvdtrain.tensorflow.summed_passes import SummedPasses

_OPS: Final = {"average": horovod.Average, "sum": horovod.Sum}
_COMPRESSIONS: Final = {"fp16": horovod.Compression.fp16, "bf16": "bf16", None: horovod.Compression.none}


class ReducingApply:
    """Replaces one optimizer's `apply`.

    Attributes:
        calls: how often Keras has called it; inside a compiled step once per trace.
        reduced: which gradients are reduced, and how.
    """

    def __init__(self, optimizer: Any, reduced: ReducedSources, passes: SummedPasses | None = None) -> None:
        self._optimizer = optimizer
        self._apply_locally = optimizer.apply
        self._passes = passes
        self.reduced = reduced
        self.calls = 0

    @property
    def adds_passes(self) -> bool:
        """Whether several calls make one update."""
        return self._passes is not None

    def __call__(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        grads = list(grads)
        # Keras lets callers of a built optimizer leave the variables out.
        of = self._optimizer._trainable_variables if trainable_variables is None else list(trainable_variables)
        if self._passes is None:
            self._update(grads, of, trainable_variables)
        else:
            if not self._optimizer.built:  # in a branch of the graph it could not make its variables
                with tf.init_scope():
                    self._optimizer.build(of)
            dense = [None if g is None else densified(i, g, of[i]).value for i, g in enumerate(grads)]
            self._passes.add(dense, of, lambda whole: self._update(whole, of, trainable_variables))
        self.calls += 1

    def _update(self, gradients: Sequence[Any], of: Sequence[Any], given: Sequence[Any] | None) -> None:
        self._apply_locally(self.reduced.reduce(gradients, of), given)


def DistributedOptimizer(  # noqa: N802 (Horovod's name)
    optimizer: Any,
    name: str | None = None,
    *,
    op: Any = "average",
    compression: Any = None,
    use_locking: bool = False,  # noqa: ARG001 (Horovod's arguments)
    device_dense: str = "",  # noqa: ARG001
    device_sparse: str = "",  # noqa: ARG001
    sparse_as_dense: bool = True,  # noqa: ARG001
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = horovod.global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Make this optimizer reduce gradients over all ranks before it applies them.

    Args:
        optimizer: a `keras.optimizers.Optimizer`, new or in use; it is changed in place. For mixed precision wrap
            the optimizer in `keras.optimizers.LossScaleOptimizer` first and give that.
        op: "average" or `hvd.Average` is the mean over ranks (the loss's mean over the global batch if all ranks'
            batches are equally large), "sum" or `hvd.Sum` the sum; Horovod's other operations are taken too.
        compression: "fp16" or `hvd.Compression.fp16` halves what travels; "bf16" too, with fewer digits and the range
            of float32; None or `hvd.Compression.none` sends gradients as they are.
        name, use_locking, device_dense, device_sparse, sparse_as_dense: accepted; gradients are always dense.
        backward_passes_per_step: gradients of so many calls are added up on each rank, then reduced and applied once.
            The optimizer's `iterations` counts updates.
        average_aggregated_gradients: whether the sum over these calls is divided by their number.
        gradient_predivide_factor, groups, process_set: see `GradientReduction`; num_groups is the older name of groups.
        scale_local_gradients: gradients of `register_local_var`'s variables are divided by the number of ranks, too.

    With Keras' own `gradient_accumulation_steps` every micro batch's gradient is reduced: the result is exact, the
    traffic is not saved.

    Returns: the optimizer that was given.

    Raises:
        UsageError: before `hvd.init()`, for an optimizer that is distributed already, for one that Keras would
            wrap in its own loss scaling, for one of TensorFlow 1, for an unknown `op` or `compression`, and for one of
            these in the place of the name.
    """
    require_init("hvd.DistributedOptimizer")
    _require_known(op=(op, _OPS), compression=(compression, _COMPRESSIONS))
    _require_name(name)
    _require_usable(optimizer)
    reduction = GradientReduction(
        op=_OPS.get(op, op) if isinstance(op, str) else op,
        compression=_COMPRESSIONS[compression] if compression is None or isinstance(compression, str) else compression,
        sparse_as_dense=True,
        predivide=gradient_predivide_factor,
        groups=newer_groups(num_groups, groups),
        process_set=process_set,
    )
    passes = _summed_passes(backward_passes_per_step, average_aggregated_gradients)
    apply = ReducingApply(optimizer, ReducedSources(reduction, scale_local_gradients), passes)
    # Not by setattr: Keras' and TensorFlow's attribute tracking would take it for state to be saved.
    vars(optimizer)["apply"] = apply
    vars(optimizer)["register_local_var"] = apply.reduced.keep_local
    return optimizer


def _require_name(name: Any) -> None:
    if name is None or (isinstance(name, str) and name not in {*_OPS, *_COMPRESSIONS}):
        return
    raise UsageError(
        f"hvd.DistributedOptimizer was given {name!r} in the place of a name.",
        "As in Horovod, only the optimizer and a name are known by their places.",
        "write op=hvd.Sum, compression=hvd.Compression.fp16.",
    )


def _require_usable(optimizer: Any) -> None:
    _require_keras_optimizer(optimizer)
    _refuse_wrapped_twice(optimizer)
    mixed = keras.config.dtype_policy().name == "mixed_float16"
    if mixed and not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise _loss_scale_outside()


def PartialDistributedOptimizer(optimizer: Any, *args: Any, local_layers: Any = None, **options: Any) -> Any:  # noqa: N802
    """`DistributedOptimizer`, except that gradients of `local_layers` (one Keras layer or several) stay on their rank.

    The layers must be built: their trainable weights are registered now.
    """
    kept = local_variables(local_layers)
    DistributedOptimizer(optimizer, *args, **options)
    for variable in kept:
        optimizer.register_local_var(variable)
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


def _require_known(**arguments: tuple[Any, Mapping[Any, Any]]) -> None:
    """What is no string is Horovod's own."""
    for argument, (value, valid) in arguments.items():
        if isinstance(value, str) and value not in valid:
            raise UsageError(
                f"hvd.DistributedOptimizer has no {argument}={value!r}.",
                "Gradients would not be reduced as asked.",
                did_you_mean(value, filter(None, valid)),
            )


def _require_keras_optimizer(optimizer: Any) -> None:
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        raise UsageError(
            f"hvd.DistributedOptimizer was given a {type(optimizer).__name__} of TensorFlow 1.",
            "Its compute_gradients and sessions are not those of Keras 3.",
            "give it an instance such as keras.optimizers.SGD(0.01).",
        )
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise UsageError(
            f"hvd.DistributedOptimizer was given {optimizer!r}.",
            "It changes an optimizer object and has no object here.",
            "give it an instance such as keras.optimizers.SGD(0.01).",
        )


def _summed_passes(passes: int, average: bool) -> SummedPasses | None:
    if passes < 1:
        raise UsageError(
            f"hvd.DistributedOptimizer was given backward_passes_per_step={passes}.",
            "An update needs the gradient of at least one backward pass.",
            "use backward_passes_per_step of at least 1.",
        )
    return None if passes == 1 else SummedPasses(passes, average)


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
