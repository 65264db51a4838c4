"""What the Keras adapter cannot train is refused before the first step."""

from __future__ import annotations

from typing import Any

import keras

from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.errors import UsageError


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
    if isinstance(optimizer._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
        raise UsageError(
            "The optimizer has a learning-rate schedule of its own.",
            "hvdtrain sets the learning rate of every step.",
            "give it the number `lr`, and choose --lr-schedule, --warmup-epochs and --lr.",
        )


def require_known_knobs(options: TrainingOptions) -> None:
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
            "Statistics travel inside the part that XLA compiles, and Horovod's operations do not run there.",
            "leave one of them out.",
        )
