"""The model of a run with the weights of one of its checkpoints, as an object of its framework."""

from pathlib import Path
from typing import Any

from hvdtrain.errors import UsageError
from hvdtrain.task.task import Task
from hvdtrain.weights.named_weights import NamedWeights
from hvdtrain.weights.rebuild import built_model, rebuilt_task
from hvdtrain.weights.weight_files import read_run, weights_of_run

CHECKPOINTS = ("best", "last")


def trained_model(
    folder: Path, checkpoint: str = "best", averaged: bool = False, kind: type[Task] | None = None
) -> Any:
    """A torch module in evaluation mode, or a Keras model, on the CPU or the framework's default device.

    Args:
        folder: a run's.
        checkpoint: "best", which is the last one where no validation chose any; or "last".
        averaged: take the exponential moving averages of the weights.
        kind: the task's class, where it cannot be imported by the name that the run has noted.

    Raises `UsageError`: there is no such checkpoint, or the model cannot be built.
    """
    if checkpoint not in CHECKPOINTS:
        raise UsageError(f"The checkpoint is {checkpoint!r}.", "A run keeps two by name.", "say 'best' or 'last'.")
    best = folder / "checkpoints" / "best"
    source = best if checkpoint == "best" and best.is_file() else folder
    run = read_run(source, "the run")
    weights = weights_of_run(run, source, averaged)
    if weights.framework == "torch":
        return model_with(rebuilt_task(run.about, "torch", kind), weights).eval()
    from hvdtrain.weights.keras_models import names_from_the_start

    with names_from_the_start():
        return model_with(rebuilt_task(run.about, "tensorflow", kind), weights)


def model_with(task: Task, weights: NamedWeights) -> Any:
    """The task's model, which has these weights. Raises `UsageError`: it cannot be built, or is another one."""
    model = built_model(task)
    if task.framework == "torch":
        from hvdtrain.weights import torch_loading

        torch_loading.give_weights(model, weights)
    else:
        from hvdtrain.weights import keras_models

        keras_models.give_weights(model, weights)
    return model
