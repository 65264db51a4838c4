"""How gradients of a tape or of an optimizer are reduced, with the arguments that Horovod has for it.

What our buckets compute in the same way travels in them. What they do not know (Adasum, Min, groups, process sets, a
predivide factor) goes through Horovod's own functions, by one message for each gradient or group.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import horovod.tensorflow as horovod
import tensorflow as tf

from hvdtrain.adapters.choose_sync import only_dense, require_adasum
from hvdtrain.adapters.keras.gradients import Op, densified, reduce_gradients, refuse_overwritten
from hvdtrain.adapters.keras.numbered_calls import NumberedCalls
from hvdtrain.comm.horovod_world import is_elastic
from hvdtrain.errors import UsageError
from hvdtrain.tensorflow.keras_variables import key_of
from hvdtrain.tensorflow.present_gradients import with_zeros_of_other_ranks

_reductions = NumberedCalls()
_OPS: Final[dict[Any, Op]] = {horovod.Average: "average", horovod.Sum: "sum"}
_COMPRESSIONS: Final[dict[Any, Any]] = {
    horovod.Compression.none: None,
    horovod.Compression.fp16: "fp16",
    "bf16": "bf16",
}


@dataclass(frozen=True)
class GradientReduction:
    """Reduces lists of gradients over the ranks of a process set.

    Args:
        op: `hvd.Average`, `hvd.Sum`, `hvd.Adasum`, …
        compression: one of `hvd.Compression`, a class with `compress` and `decompress`, or "bf16".
        sparse_as_dense: whether `tf.IndexedSlices` become dense; otherwise the rows of all ranks are gathered.
        predivide: gradients are divided by it before they are summed and multiplied by it afterwards.
        groups: number of groups, or lists of variables, that Horovod reduces together.
        process_set: ranks outside it keep their gradients.

    Raises:
        UsageError: for arguments that exclude each other.
    """

    op: Any = horovod.Average
    compression: Any = horovod.Compression.none
    sparse_as_dense: bool = False
    predivide: float = 1.0
    groups: Any = None
    process_set: Any = horovod.global_process_set

    def __post_init__(self) -> None:
        if self.op == horovod.Adasum:
            on_gpu = bool(tf.config.get_visible_devices("GPU"))
            require_adasum(horovod, on_gpu, "op=hvd.Adasum")
        if self.predivide != 1.0 and self.op != horovod.Average:
            raise UsageError(
                f"gradient_predivide_factor={self.predivide} was given with another op than hvd.Average.",
                "The factor splits the division of an average.",
                "leave gradient_predivide_factor out, or use op=hvd.Average.",
            )
        if self.groups is not None and not isinstance(self.groups, list) and not self.groups > 0:
            raise UsageError(
                f"groups={self.groups!r} does not say how to group gradients.",
                "It is the number of groups, or a list of lists of variables.",
                "leave groups out, or give a number of at least 1.",
            )

        if self.compression == "bf16" and (not self._has_plain_arguments() or is_elastic(os.environ)):
            raise UsageError(
                'compression="bf16" was given in an elastic job, or with an op, groups, process_set or '
                "gradient_predivide_factor of Horovod.",
                "Horovod 0.28.1 cannot add up bfloat16.",
                "use hvd.Compression.fp16, or leave the other argument out.",
            )

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Every gradient as this reduces it; None for None. Collective; call it while tracing or eagerly.

        Args:
            gradients: a `tf.Tensor`, `tf.IndexedSlices` or None for each variable: in a graph of the same kind on every
                rank; in eager mode a rank's None is zeros where another rank has a gradient.
            variables: variables or tensors with the gradients' shapes.
        """
        refuse_overwritten(variables)
        if self.sparse_as_dense:
            gradients = [_dense(i, g, v) for i, (g, v) in enumerate(zip(gradients, variables, strict=True))]
        if not self.process_set.included() or not may_have_peers(self.process_set):
            return list(gradients)
        of = self.process_set.process_set_id  # a rank outside has fewer reductions than one inside
        prefix = f"hvdtrain_reduction_{of}_{_reductions.number(of)}"
        if tf.executing_eagerly():
            gradients = with_zeros_of_other_ranks(gradients, variables, self.process_set, prefix)
        sparse = {i for i, gradient in enumerate(gradients) if isinstance(gradient, tf.IndexedSlices)}
        dense = [None if i in sparse else gradient for i, gradient in enumerate(gradients)]
        reduce = self._by_buckets if self._suits_buckets(dense) else self._by_messages
        reduced = reduce(dense, variables, prefix)
        for i in sorted(sparse):
            reduced[i] = self._gathered(gradients[i], f"{prefix}_rows_{i}")
        return reduced

    def _suits_buckets(self, gradients: Iterable[Any]) -> bool:
        shaped = all(g is None or (g.dtype.is_floating and g.shape.is_fully_defined()) for g in gradients)
        # Compressed buckets have the number of ranks in their graph.
        known = [horovod.Compression.none] if is_elastic(os.environ) else _COMPRESSIONS
        return shaped and self.compression in known and self._has_plain_arguments()

    def _has_plain_arguments(self) -> bool:
        whole = self.process_set is horovod.global_process_set
        return self.op in _OPS and self.predivide == 1.0 and self.groups is None and whole

    def _by_buckets(self, gradients: Sequence[Any], variables: Sequence[Any], prefix: str) -> list[Any]:
        op, compression = _OPS[self.op], _COMPRESSIONS[self.compression]
        reduced: list[Any] = reduce_gradients(gradients, variables, op=op, compression=compression, prefix=prefix)
        return reduced

    def _by_messages(self, gradients: Sequence[Any], variables: Sequence[Any], prefix: str) -> list[Any]:
        reduced: list[Any] = [None] * len(gradients)
        for number, places in enumerate(self._places(gradients, variables)):
            received = self._as_group([_known(gradients[i]) for i in places], f"{prefix}_group_{number}")
            for i, value in zip(places, received, strict=True):
                reduced[i] = tf.cast(value, gradients[i].dtype)
        return reduced

    def _as_group(self, gradients: list[Any], name: str) -> list[Any]:
        if self.groups is not None and self.op != horovod.Adasum:  # for which Horovod 0.28.1's groups raise a NameError
            return list(horovod.grouped_allreduce(gradients, name=name, **self._options()))
        return [horovod.allreduce(g, name=f"{name}_{i}", **self._options()) for i, g in enumerate(gradients)]

    def _places(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[list[int]]:
        """Which gradients are reduced together."""
        there = [i for i, gradient in enumerate(gradients) if gradient is not None]
        if self.groups is None:
            return [[i] for i in there]
        if not isinstance(self.groups, list):
            count = min(self.groups, len(there))
            bounds = [len(there) * part // count for part in range(count + 1)] if count else []
            return [there[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]
        at = {key_of(variables[i]): i for i in there}
        listed = [[at.pop(key_of(v)) for v in group if key_of(v) in at] for group in self.groups]
        return [group for group in listed if group] + [[i] for i in sorted(at.values())]

    def _options(self) -> dict[str, Any]:
        return {
            "op": self.op,
            "compression": self.compression,
            "prescale_factor": 1.0 / self.predivide,
            "postscale_factor": self.predivide,
            "process_set": self.process_set,
            "ignore_name_scope": True,
        }

    def _gathered(self, rows: Any, name: str) -> Any:
        """The rows of all ranks: their sum is the sum of the ranks' gradients."""
        if self.op not in _OPS:
            raise only_dense("tf.IndexedSlices")
        where = {"process_set": self.process_set, "ignore_name_scope": True}
        values = horovod.allgather(rows.values, name=f"{name}_values", **where)
        indices = horovod.allgather(rows.indices, name=f"{name}_indices", **where)
        if self.op == horovod.Average:
            values = values / tf.cast(number_of_ranks(self.process_set), values.dtype)
        return tf.IndexedSlices(values, indices, rows.dense_shape)


def _known(gradient: Any) -> Any:
    """In a dtype that Horovod 0.28.1 can add up."""
    return tf.cast(gradient, tf.float32) if gradient.dtype == tf.bfloat16 else gradient


def may_have_peers(process_set: Any) -> bool:
    """Whether a graph that is traced now may ever run beside other ranks'."""
    return bool(process_set.size() > 1 or is_elastic(os.environ))


def number_of_ranks(process_set: Any) -> Any:
    """A number, or in an elastic job an operation that asks for it in each step."""
    return horovod.size_op(process_set.process_set_id) if is_elastic(os.environ) else process_set.size()


def _dense(place: int, gradient: Any, variable: Any) -> Any:
    return densified(place, gradient, variable).value if isinstance(gradient, tf.IndexedSlices) else gradient


def scaled_local(gradient: Any, ranks: int) -> Any:
    """A gradient that stays on its rank, divided by the number of ranks as those of an average are."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values / tf.cast(ranks, gradient.values.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(ranks, gradient.dtype)
