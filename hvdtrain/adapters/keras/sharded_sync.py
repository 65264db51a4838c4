"""State sharding in Keras: as `hvdtrain.adapters.torch.sharded_sync`, traced into the step.

A variable of TensorFlow has memory of its own, so that the optimizer trains copies of this rank's parts of the weights,
which the allgather brings back.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from hvdtrain.adapters.choose_sync import ChosenSync, needs_whole_weights
from hvdtrain.adapters.keras.gradient_sync import GradientSync
from hvdtrain.adapters.keras.gradients import bucket_name, densified, refuse_overwritten
from hvdtrain.adapters.keras.graph_clock import Waiting
from hvdtrain.adapters.keras.optimizers import RuleOptimizer
from hvdtrain.adapters.sync_state import HookState, in_buckets, pieces_of

_BY_NUMBER = tuple(
    getattr(keras.optimizers, name)
    for name in ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lion", "Nadam", "RMSprop", "SGD")
)
"""Optimizers that update each number of a weight by its own gradient and state."""


@dataclass(frozen=True, eq=False)
class Piece:
    """The part of a variable that this rank updates."""

    variable: Any  # as the model has it
    weights: Any  # [end - start], a copy of that part
    start: int  # its first number
    end: int  # behind its last one


class _Shard:
    """A bucket, and this rank's part of it. Args: `variables`: in the bucket, one after the other."""

    def __init__(self, number: int, variables: Sequence[Any], rank: int, size: int) -> None:
        self.variables = variables
        self.lengths = [math.prod(variable.shape) for variable in variables]
        self.dtype = tf.as_dtype(variables[0].dtype)
        self.name = bucket_name(number, self.dtype, [tuple(variable.shape) for variable in variables])
        self.pieces = [_piece(variables[i], start, end) for i, start, end in pieces_of(self.lengths, rank, size)]
        self.part_lengths = [piece.end - piece.start for piece in self.pieces]


def _piece(variable: Any, start: int, end: int) -> Piece:
    flat = tf.reshape(variable.value, [-1])[start:end]
    weights = keras.Variable(flat, dtype=variable.dtype, trainable=True, name=variable.name)
    weights._path = variable.path  # by which optimizers name their own variables
    return Piece(variable, weights, start, end)


class ShardedSync(GradientSync):
    """See the module.

    Args: `optimizer`: not built; it trains this rank's pieces.

    Attributes:
        pieces: what this rank's optimizer trains, as copies.
        slots: of each of the optimizer's variables that belongs to a piece, by its id, that piece.

    Raises `UsageError`: the optimizer, or the model, needs more than a part of a variable.
    """

    def __init__(self, model: Any, optimizer: Any, chosen: ChosenSync, waiting: Waiting) -> None:
        import horovod.tensorflow as hvd

        variables = model.trainable_variables
        refuse_overwritten(variables)
        _require_by_number(model, optimizer)
        super().__init__(HookState(chosen.loss_multiplier))
        self._hvd: Any = hvd
        self._waiting = waiting
        groups = in_buckets(
            reversed(variables),
            lambda v: v.dtype,
            lambda v: math.prod(v.shape) * tf.as_dtype(v.dtype).size,
            chosen.bucket_bytes,
        )
        self._shards = [_Shard(number, group, hvd.rank(), hvd.size()) for number, group in enumerate(groups)]
        self.pieces = [piece for shard in self._shards for piece in shard.pieces]
        self.slots: dict[int, Piece] = {}
        with tf.device("/cpu:0"):
            self._received = tf.Variable(0.0, dtype=tf.float64, trainable=False)
            self._none = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._build(optimizer)

    def updated(self, variables: Sequence[Any]) -> Sequence[Any]:  # noqa: ARG002
        return [piece.weights for piece in self.pieces]

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients of this rank's pieces; None for None."""
        gradient_of = {id(v): g for v, g in zip(variables, gradients, strict=True) if g is not None}
        # All ranks leave out the same buckets. Their zeros would be constants, and TensorFlow would compute the sum of
        # constants once, while it optimizes the graph, at another moment on each rank.
        sent = [shard for shard in self._shards if any(id(variable) in gradient_of for variable in shard.variables)]
        flat = [self._flattened(shard, gradient_of) for shard in sent]
        parts = self._waiting.over(flat, lambda: [self._scattered(*pair) for pair in zip(sent, flat, strict=True)])
        self._need(
            part
            for shard, part in zip(sent, parts, strict=True)
            if not any(id(piece.variable) in gradient_of for piece in shard.pieces)
        )
        numbers: dict[int, Any] = {}
        for shard, part in zip(sent, parts, strict=True):
            if shard.pieces:
                split = tf.split(tf.ensure_shape(part, [sum(shard.part_lengths)]), shard.part_lengths)
                numbers |= {id(piece): n for piece, n in zip(shard.pieces, split, strict=True)}
        return [numbers[id(piece)] if id(piece.variable) in gradient_of else None for piece in self.pieces]

    def _flattened(self, shard: _Shard, gradients: dict[int, Any]) -> Any:
        flat = []
        for place, variable in enumerate(shard.variables):
            gradient = gradients.get(id(variable))
            dense = tf.zeros_like(variable.value) if gradient is None else densified(place, gradient, variable).value
            flat.append(tf.reshape(dense, [-1]))
        return tf.concat(flat, 0)

    def _need(self, parts: Iterable[Any]) -> None:
        """TensorFlow leaves out an operation whose result nothing needs; other ranks would wait for this one."""
        unneeded = [tf.cast(tf.reshape(part, [-1]), tf.float64) for part in parts]
        if unneeded:
            self._received.assign_add(tf.reduce_sum(tf.concat(unneeded, 0)))

    def _scattered(self, shard: _Shard, flat: Any) -> Any:
        return self._hvd.reducescatter(flat, op=self._hvd.Sum, name=shard.name, ignore_name_scope=True)

    def distribute(self) -> None:
        local = [
            tf.concat([piece.weights.value for piece in shard.pieces] or [self._no_numbers(shard.dtype)], 0)
            for shard in self._shards
        ]
        gathered = self._waiting.over(
            local, lambda: [self._gathered(*pair) for pair in zip(self._shards, local, strict=True)]
        )
        for shard, flat in zip(self._shards, gathered, strict=True):
            for variable, part in zip(shard.variables, tf.split(flat, shard.lengths), strict=True):
                variable.assign(tf.reshape(part, variable.shape))

    def _no_numbers(self, dtype: tf.DType) -> Any:
        """An empty vector, but no constant: TensorFlow would gather it while it optimizes the graph."""
        return tf.zeros(tf.cast(self._none, tf.int32)[tf.newaxis], dtype)

    def _gathered(self, shard: _Shard, local: Any) -> Any:
        flat = self._hvd.allgather(local, name=f"{shard.name}_weights", ignore_name_scope=True)
        return tf.ensure_shape(flat, [sum(shard.lengths)])

    def total_norm(self, gradients: Sequence[Any]) -> Any:
        norm = tf.cast(super().total_norm(gradients), tf.float64) if gradients else tf.constant(0.0, tf.float64)
        told = {"op": self._hvd.Sum, "name": "hvdtrain_gradients_norm", "ignore_name_scope": True}
        (total,) = self._waiting.over([norm], lambda: [self._hvd.allreduce(tf.square(norm), **told)])
        return tf.cast(tf.sqrt(total), tf.float32)

    def refresh(self) -> None:
        """Copy this rank's parts again: the weights were loaded."""
        for piece in self.pieces:
            piece.weights.assign(tf.reshape(piece.variable.value, [-1])[piece.start : piece.end])

    def _build(self, optimizer: Any) -> None:
        by_weights = {id(piece.weights): piece for piece in self.pieces}
        for name in ("_exempt", "_exclude_from_weight_decay"):  # ours, and Keras': keys of variables
            exempt, key = getattr(optimizer, name, None), optimizer._var_key
            if exempt:
                pieces = {key(piece.weights) for piece in self.pieces if key(piece.variable) in exempt}
                setattr(optimizer, name, type(exempt)(exempt | pieces))
        add = optimizer.add_variable_from_reference

        def noted(reference_variable: Any, *arguments: Any, **named: Any) -> Any:
            variable = add(reference_variable, *arguments, **named)
            self.slots[id(variable)] = by_weights[id(reference_variable)]
            return variable

        optimizer.add_variable_from_reference = noted
        optimizer.build([piece.weights for piece in self.pieces])
        del optimizer.add_variable_from_reference


def _require_by_number(model: Any, optimizer: Any) -> None:
    name = type(optimizer).__name__
    if type(optimizer) not in (*_BY_NUMBER, RuleOptimizer):
        needs = f"the optimizer {name}"
    elif optimizer.clipnorm is not None or optimizer.global_clipnorm is not None or optimizer.use_ema:
        needs = f"clipnorm, global_clipnorm or use_ema of {name}"
    elif optimizer.built:
        needs = "an optimizer that build_optimizer() has built for whole weights already"
    elif any(variable.constraint is not None for variable in model.trainable_variables):
        needs = "constraints on weights"
    else:
        return
    raise needs_whole_weights(needs, _BY_NUMBER, "keras.optimizers")
