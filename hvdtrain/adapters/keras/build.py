"""The parts of a `KerasAdapter` as the options ask for them; what it cannot train is refused before the first step."""

from collections.abc import Iterator
from typing import Any, Final

import keras
import tensorflow as tf

from hvdtrain.adapters.choose_sync import choose_sync
from hvdtrain.adapters.keras.activation_checkpointing import checkpoint_activations
from hvdtrain.adapters.keras.device import built_for
from hvdtrain.adapters.keras.gradient_sync import GradientSync, NoSync, SummedGradients
from hvdtrain.adapters.keras.graph_clock import Waiting
from hvdtrain.adapters.keras.local_sgd import LocalSgd
from hvdtrain.adapters.keras.optimizers import build_optimizer
from hvdtrain.adapters.keras.sharded_sync import ShardedSync
from hvdtrain.adapters.keras.sparse import SparseGradients
from hvdtrain.adapters.keras.sync_batch_norm import convert_sync_batch_norm, horovod_sum
from hvdtrain.adapters.keras.virtual_sync import WorkersGradients
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.errors import UsageError
from hvdtrain.task.task import Task
from hvdtrain.topology import Topology
from hvdtrain.topology.virtual_workers import VirtualWorkers

_TRAINED: Final = ("float16", "float32", "float64")
"""Numbers that every way to sum gradients over workers can add."""

_HINTS: Final = {
    "bfloat16": "build the layer in float32, and train with --precision bf16; what is not trained may stay bfloat16."
}


def build_model(task: Task, options: TrainingOptions, topology: Topology) -> Any:
    """The task's model, with the paths of its weights unchanged."""
    with built_for(options.precision):
        model = task.build_model()
    if options.sync_batch_norm:
        convert_sync_batch_norm(model, horovod_sum if topology.is_distributed else None)
    if options.activation_checkpointing:
        checkpoint_activations(model)
    return model


def open_optimizer(task: Task, model: keras.Model, lr: float, options: TrainingOptions, alone: bool) -> Any:
    """The options' optimizer or the task's, with all of its variables unless several workers share them."""
    optimizer = task.build_optimizer(model, lr) if options.optimizer is None else build_optimizer(model, lr, options)
    require_usable(model, optimizer)
    _require_savable(model)
    if alone or options.shard == "none":
        optimizer.build(model.trainable_variables)
        _require_known(f"The optimizer {type(optimizer).__name__}", optimizer)
    return optimizer


def open_gradient_sync(
    model: Any,
    optimizer: Any,
    topology: Topology,
    options: TrainingOptions,
    waiting: Waiting,
    workers: VirtualWorkers | None = None,
) -> GradientSync:
    """The gradient sync that `options` ask for. Args: `workers`: as of `KerasAdapter`."""
    chosen, variables = choose_sync(options, topology), model.trainable_variables
    match chosen.kind:
        case "none":
            return NoSync()
        case "virtual":
            assert workers is not None  # see `prepare`
            return WorkersGradients(variables, chosen, workers, waiting)
        case "sparse":
            return SparseGradients(chosen, waiting)
        case "local":
            return LocalSgd(model, optimizer, chosen, waiting)
        case "sharded":
            return ShardedSync(model, optimizer, chosen, waiting)
        case "each" | "buckets":  # a bucket may have one gradient
            return SummedGradients(variables, chosen, waiting)


def require_usable(model: Any, optimizer: Any) -> None:
    """Raise `UsageError` for a model without weights, or an optimizer that hvdtrain cannot drive."""
    if not isinstance(model, keras.Model) or not model.built:
        raise UsageError(
            "build_model() returned a Keras model that is not built."
            if isinstance(model, keras.Model)
            else f"build_model() returned {type(model).__name__}, not a keras.Model.",
            "Its weights do not exist yet, so they cannot be made equal on all workers.",
            "begin it with keras.Input(shape), or call it once on a batch of zeros in build_model().",
        )
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise UsageError(
            f"build_optimizer() returned {type(optimizer).__name__}.",
            "The training step calls a Keras optimizer.",
            "return one keras.optimizers.Optimizer.",
        )
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise UsageError(
            "The optimizer is a LossScaleOptimizer.",
            "Each worker would decide by itself whether a step is skipped, and they would drift apart.",
            "return the inner optimizer; --precision fp16 scales the loss.",
        )
    if optimizer.loss_scale_factor is not None:
        raise UsageError(
            f"The optimizer has the loss_scale_factor {optimizer.loss_scale_factor:g}.",
            "It divides gradients by that, and nothing multiplies the loss.",
            "leave it out; --precision fp16 scales the loss.",
        )
    if optimizer.use_ema and not optimizer.ema_overwrite_frequency:
        raise UsageError(
            "The optimizer has use_ema and no ema_overwrite_frequency.",
            "Keras' fit() would put the averages into the model at its end, and here nothing does.",
            "leave it out, and train with --ema-decay.",
        )
    if isinstance(optimizer._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
        raise UsageError(
            "The optimizer has a learning-rate schedule of its own.",
            "hvdtrain sets the learning rate of every step.",
            "give it the number `lr`, and choose --lr-schedule, --warmup-epochs and --lr.",
        )


def _require_savable(model: keras.Model) -> None:
    """Raise `UsageError` for variables that no sum over workers takes, or no checkpoint gives back."""
    for variable in model.trainable_variables:
        if variable.dtype not in _TRAINED:
            raise UsageError(
                f"The trainable variable {variable.path!r} is {variable.dtype}.",
                "Gradients of that type cannot be summed over workers; those of float16, float32 and float64 can.",
                _HINTS.get(variable.dtype, "keep real numbers, such as real and imaginary parts."),
            )
    for variable in model.variables:
        if variable.dtype == "string":
            raise UsageError(
                f"The variable {variable.path!r} holds texts.",
                "A checkpoint holds numbers.",
                "keep the texts' numbers, or look them up where records are decoded.",
            )
    for layer in model._flatten_layers():
        _require_known(f"The layer {layer.name!r}", layer)


def _require_known(what: str, keeper: Any) -> None:
    """Raise `UsageError` for a tf.Variable, of which Keras does not know; of its own it does, wherever they are."""
    for name, value in vars(keeper).items():
        if name.startswith("_") and not isinstance(value, tf.Variable):
            continue  # Keras' own lists of what it knows
        if any(isinstance(part, tf.Variable) for part in _parts(value)):
            raise UsageError(
                f"{what} keeps a tf.Variable in {name!r}.",
                "Keras does not know of it, so it is neither made equal on all workers nor saved in checkpoints.",
                "make a keras.Variable of it, or call add_weight() (in an optimizer add_variable()).",
            )


def _parts(value: Any, around: tuple[int, ...] = ()) -> Iterator[Any]:
    """What is in a container, or in containers in it, each of which may hold itself; or the value."""
    if not isinstance(value, dict | list | tuple | set | frozenset):
        yield value
    elif id(value) not in around:
        for part in value.values() if isinstance(value, dict) else value:
            yield from _parts(part, (*around, id(value)))


def require_supported(options: TrainingOptions) -> None:
    """Raise `UsageError` for what only torch has, or what Keras and Horovod cannot do together."""
    if options.data_parallel:
        raise UsageError(
            "--data-parallel is given with TensorFlow.",
            "DataParallel is torch's.",
            "leave it out; horovodrun -np N uses N GPUs.",
        )
    if options.accumulate_steps > 1 and options.sparse_gradients == "allgather":
        raise UsageError(
            f"--accumulate-steps {options.accumulate_steps} is given with --sparse-gradients allgather in TensorFlow.",
            "Gradients of micro batches are added up in dense variables.",
            "leave one of them out.",
        )
    if options.compile and options.activation_checkpointing:
        raise UsageError(
            "--compile is given with --activation-checkpointing in TensorFlow.",
            "XLA may find that the repetition is what was computed before, and keep that.",
            "leave one of them out.",
        )
    if options.compile and options.sync_batch_norm:
        raise UsageError(
            "--compile is given with --sync-batch-norm in TensorFlow.",
            "Statistics are reduced inside the part that XLA compiles, and Horovod's operations do not run there.",
            "leave one of them out.",
        )
