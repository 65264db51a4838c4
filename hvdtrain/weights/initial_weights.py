"""A training's first state from given weights."""

from pathlib import Path
from typing import Any, Final

import numpy as np

from hvdtrain.errors import UsageError
from hvdtrain.models.exchange import some
from hvdtrain.named_arrays import State, as_numbers, like_numbers
from hvdtrain.task.task import Task
from hvdtrain.weights.named_weights import Exclusion, NamedWeights, Naming, fitted
from hvdtrain.weights.weight_files import kind_of, read_weights

_MODEL: Final = "model/"
_AVERAGE: Final = "ema/"


def initial_state(state: State, path: Path, task: Task, exclude: str | None = None, model: Any = None) -> State:
    """`state` of a fresh adapter with the weights in `path` for its own, and for its averages; nothing else changes.

    Args:
        state: may be views of the memory of `model`.
        task: builds another model where there is no `model`.
        exclude: patterns of the names of weights that stay fresh.
        model: the adapter's, if it is the whole one. Its values are lost: the result is to be loaded into it.

    Raises `UsageError`: `path` holds no weights, or those of another model; names that differ are listed.
    """
    arrays_of_model = {
        n.removeprefix(_MODEL): a for n, a in state.items() if n.startswith(_MODEL) and a.dtype.kind != "S"
    }
    wanted = {name: np.array(as_numbers(array)) for name, array in arrays_of_model.items()}
    exclusion = Exclusion(exclude)
    if all(name in exclusion for name in wanted):
        raise UsageError(
            f"--init-weights-exclude {exclude} excludes every weight of the model.",
            f"Nothing would be taken from {path}.",
            "exclude fewer weights, or leave --init-weights out.",
        )
    kind = kind_of(path)
    if kind == "keras" and task.framework == "tensorflow":
        # Keras itself knows where each layer of any kind keeps its weights in a file.
        from hvdtrain.weights.keras_models import read_into

        arrays = read_into(task.build_model() if model is None else model, path, list(wanted), exclusion)
        source = NamedWeights(arrays, "tensorflow", str(path))
    else:
        source = read_weights(path, kind, task.framework)
    naming: Naming | None = None
    if task.framework == "torch":
        from hvdtrain.weights.torch_loading import naming_of  # imports torch

        naming = naming_of(task, model)
    weights = fitted(source, wanted, task.framework, exclusion, naming)
    _tell_of_other_names([name for name in wanted if name in exclusion and weights[name] is not wanted[name]], exclude)
    replaced = {_MODEL + name: like_numbers(array, arrays_of_model[name].dtype) for name, array in weights.items()}
    averages = {_AVERAGE + name: array for name, array in weights.items() if _AVERAGE + name in state}
    return {**state, **replaced, **averages}


def _tell_of_other_names(names: list[str], exclude: str | None) -> None:
    if names:
        print(
            f"hvdtrain: --init-weights-exclude {exclude} has no effect on {some(names)}: the model has the same array "
            "under another name, which is not excluded",
            flush=True,
        )
