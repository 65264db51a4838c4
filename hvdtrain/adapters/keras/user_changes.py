"""What user code has changed of a Keras model and its optimizer, looked at when an epoch begins."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import keras
import numpy as np
import tensorflow as tf

from hvdtrain.adapters.agreed_changes import KeptSettings, learning_rate_changed, listed
from hvdtrain.errors import HvdtrainError

_SETTINGS: Final[Mapping[str, Callable[[], object]]] = {
    "keras.config.floatx()": keras.config.floatx,
    "keras.config.dtype_policy()": lambda: keras.config.dtype_policy().name,
    "keras.config.image_data_format()": keras.config.image_data_format,
    "tf.config.functions_run_eagerly()": tf.config.functions_run_eagerly,
    "TensorFlow's use of TF32": tf.config.experimental.tensor_float_32_execution_enabled,
}


class UserChanges:
    """Compares a model and its optimizer with what they were when the adapter was opened."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self._model, self._optimizer = model, optimizer
        self._settings = KeptSettings(_SETTINGS)
        self._weights = {id(variable): variable for variable in model.weights}
        self._trained = {id(variable) for variable in model.trainable_variables}
        self._numbers = self._read_numbers()

    def look(self, learning_rate: float | None) -> list[str]:
        """The places of trained weights in the model, and their shapes: paths have automatic numbers, of each rank.

        Args: `learning_rate`: as the last step has set it; None: there was no step yet.

        Raises `HvdtrainError`: something has changed that must not.
        """
        self._settings.require_unchanged()
        now = {id(variable): variable for variable in self._model.weights}
        if other := [(self._weights | now)[key].path for key in now.keys() ^ self._weights.keys()]:
            raise HvdtrainError(
                f"User code has added, removed or replaced {listed(sorted(other))} in the model during training.",
                "The graph of a training step, the optimizer and checkpoints know those that the model had before.",
                "build all layers in build_model().",
            )
        trained = {id(variable) for variable in self._model.trainable_variables}
        if changed := [now[key].path for key in trained ^ self._trained]:
            raise HvdtrainError(
                f"User code has changed `trainable` of {listed(sorted(changed))} during training.",
                "The graph of a training step is made once, so that this would have no effect.",
                "set it in build_model(); to train other layers later, begin another run with --init-weights.",
            )
        self._require_same_optimizer(learning_rate)
        return [f"{number}: {tuple(v.shape)}" for number, v in enumerate(self._weights.values()) if id(v) in trained]

    def _require_same_optimizer(self, learning_rate: float | None) -> None:
        numbers = self._read_numbers()
        if changed := sorted(name for name, value in numbers.items() if value != self._numbers.get(name)):
            raise HvdtrainError(
                f"User code has changed {listed(changed)} of the optimizer {type(self._optimizer).__name__}.",
                "The graph of a training step is made once, so that this would have no effect.",
                "choose them in build_optimizer(); to train on with others, begin another run with --init-weights.",
            )
        rate = np.asarray(self._optimizer.learning_rate)
        if learning_rate is not None and rate != np.asarray(learning_rate, rate.dtype):
            raise learning_rate_changed(rate, learning_rate)

    def _read_numbers(self) -> dict[str, float]:
        """Read numbers of Python, such as momentum and weight decay, which the graph has as they were."""
        return {name: value for name, value in vars(self._optimizer).items() if isinstance(value, float)}
