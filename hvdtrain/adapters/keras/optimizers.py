"""The optimizers of `--optimizer` in Keras, by framework-neutral rules, so that both frameworks train equally.

Keras' own differ from torch's: SGD's momentum holds steps instead of gradients, so that a warm-up still pays off
earlier steps at their old learning rate (Goyal et al. 2017, arXiv:1706.02677, remark 2); its decay is separate
from the gradient, without momentum; Adam adds epsilon before the second moment's correction.
"""

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from hvdtrain.algorithms import update_rules
from hvdtrain.config.training_options import TrainingOptions, optimizer_settings

_NORMALIZATIONS = (
    keras.layers.BatchNormalization,
    keras.layers.LayerNormalization,
    keras.layers.GroupNormalization,
    keras.layers.RMSNormalization,
)
_OPERATIONS = update_rules.Operations(sqrt=tf.sqrt, sign=tf.sign, norm=tf.norm, where=tf.where)


def build_optimizer(model: keras.Model, lr: float, options: TrainingOptions) -> keras.optimizers.Optimizer:
    """The optimizer that `options` choose; `model` says which variables are exempt from decay (normalization, biases).

    Args: `options`: `optimizer` must be chosen.
    """
    return RuleOptimizer(lr, optimizer_settings(options), () if options.decay_norm_and_bias else _exempt(model))


class RuleOptimizer(keras.optimizers.Optimizer):  # type: ignore[misc]  # Keras has no types
    """Any optimizer by its rule in `hvdtrain.algorithms.update_rules`. Sparse gradients are made dense.

    Args: `exempt`: variables that are neither decayed nor scaled by norms.
    """

    def __init__(self, learning_rate: float, settings: update_rules.Settings, exempt: Iterable[Any] = ()) -> None:
        super().__init__(learning_rate, name=settings.name)
        self._settings = settings
        self._exempt = frozenset(self._var_key(variable) for variable in exempt)

    def build(self, variables: list[Any]) -> None:
        if self.built:
            return
        super().build(variables)
        names = update_rules.slot_names(self._settings)
        self._slots = {name: [self.add_variable_from_reference(v, name) for v in variables] for name in names}

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        settings = self._settings.for_exempt() if self._var_key(variable) in self._exempt else self._settings
        place = self._get_variable_index(variable)
        variables = {name: of_all[place] for name, of_all in self._slots.items()}
        slots = {name: slot.value for name, slot in variables.items()}
        gradient = tf.cast(tf.convert_to_tensor(gradient), variable.dtype)
        corrected = self._corrections(variable.dtype)
        down, slots = update_rules.direction(_OPERATIONS, settings, variable, gradient, slots, corrected)
        for name, value in slots.items():
            self.assign(variables[name], value)
        self.assign_sub(variable, tf.cast(learning_rate, variable.dtype) * down)

    def _corrections(self, dtype: Any) -> update_rules.Corrections:
        exact = update_rules.corrections(self._settings, tf.cast(self.iterations.value + 1, tf.float64))
        return update_rules.Corrections(tf.cast(exact.first, dtype), tf.cast(exact.second, dtype))


def _exempt(model: keras.Model) -> Iterable[Any]:
    in_normalization = {
        id(variable)
        for layer in model._flatten_layers()
        if isinstance(layer, _NORMALIZATIONS)
        for variable in layer.trainable_variables
    }
    for variable in model.trainable_variables:
        if update_rules.is_exempt(variable.name, len(variable.shape), id(variable) in in_normalization):
            yield variable
