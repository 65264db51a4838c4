"""`hvd.DistributedGradientTape`: gradients that are reduced over ranks, of TensorFlow and Keras variables."""

from collections.abc import Iterable, Sequence
from typing import Any

import horovod.tensorflow as horovod
import keras
import tensorflow as tf
from horovod.tensorflow import mpi_ops
from horovod.tensorflow.compression import Compression, FP16Compressor, NoneCompressor

from hvdtrain.adapters.keras.gradients import reduce_gradients
from hvdtrain.errors import UsageError
from hvdtrain.tensorflow.start import require_start
from hvdtrain.tensorflow.variables import plain

_OURS = {NoneCompressor: None, FP16Compressor: "fp16"}


class _Reducing:
    """The methods of a distributed tape, and what they need; see `DistributedGradientTape`."""

    _plain: type[tf.GradientTape]
    _rule: dict[str, Any]
    _local: set[Any]

    def register_local_source(self, source: Any) -> None:
        """Leave the gradient of this variable as this rank has it."""
        self._local.add(plain(source).ref())

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
        use_generic_names: bool = False,  # noqa: ARG002  Horovod's; names are of shapes
    ) -> Any:
        """The gradients of `target`, each reduced over ranks, in the structure of `sources`. Collective."""
        listed = [plain(source) for source in _listed(sources)]
        found = self._plain.gradient(self, target, listed, output_gradients, unconnected_gradients)
        shared = [number for number, source in enumerate(listed) if source.ref() not in self._local]
        reduced = _reduced([found[n] for n in shared], [listed[n] for n in shared], **self._rule)
        for number, gradient in zip(shared, reduced, strict=True):
            found[number] = gradient
        if self._scales_local:  # type: ignore[attr-defined]
            size = self._rule["process_set"].size()
            local = set(range(len(found))).difference(shared)
            found = [_divided(g, size) if n in local and g is not None else g for n, g in enumerate(found)]
        return found[0] if _is_one(sources) else tf.nest.pack_sequence_as(_unpacked(sources), found)

    def get_local_and_global_gradients(
        self, target: Any, sources: Sequence[Any], output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[Any], list[Any]]:
        """Pairs of source and gradient: of local sources, and of the others. Collective."""
        gradients = self.gradient(target, sources, output_gradients, use_generic_names=use_generic_names)
        pairs = list(zip(sources, gradients, strict=True))
        is_local = [plain(source).ref() in self._local for source in sources]
        return [p for p, local in zip(pairs, is_local, strict=True) if local], [
            p for p, local in zip(pairs, is_local, strict=True) if not local
        ]


def DistributedGradientTape(  # noqa: N802  Horovod's name, and its arguments
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: Any = mpi_ops.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = mpi_ops.global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """The tape, whose `gradient` reduces over ranks.

    Dense gradients travel in flat buckets; those of other operations than a mean or a sum, of process sets and of
    explicit groups, and rows of sparse gradients, as Horovod sends them.

    Args:
        gradtape: has recorded, or will.
        device_dense, device_sparse: Horovod's.
        compression: `hvd.Compression.none` or `.fp16`, or a class of the same methods.
        sparse_as_dense: add up `tf.IndexedSlices` as dense tensors instead of gathering their rows.
        op: `hvd.Average`, `Sum`, `Adasum`, `Min`, `Max` or `Product`.
        gradient_predivide_factor: divide by it before the sum, and by size / it afterwards; with Average only.
        num_groups: an old name for `groups`.
        groups: how many messages, or lists of variables.
        process_set: the ranks that exchange gradients.
        scale_local_gradients: divide gradients of local sources by the number of ranks.

    Raises `UsageError`: before `hvd.init()`, or arguments that exclude each other.
    """
    require_start("hvd.DistributedGradientTape")
    if gradient_predivide_factor != 1.0 and op != mpi_ops.Average:
        raise UsageError(
            f"gradient_predivide_factor={gradient_predivide_factor} is given, and op is not Average.",
            "It divides a mean's denominator into two factors.",
            "leave one of them out.",
        )
    kind = type(gradtape)
    methods = {name: value for name, value in vars(_Reducing).items() if name not in ("__dict__", "__weakref__")}
    tape: Any = object.__new__(type(kind.__name__, (kind,), {**methods, "_plain": kind}))
    vars(tape).update(vars(gradtape))
    tape._local, tape._scales_local = set(), scale_local_gradients
    tape._rule = {
        "devices": (device_dense, device_sparse),
        "compression": compression,
        "sparse_as_dense": sparse_as_dense,
        "op": op,
        "predivide": gradient_predivide_factor,
        "groups": plain(groups) if groups is not None else num_groups or None,
        "process_set": process_set,
    }
    return tape


def PartialDistributedGradientTape(  # noqa: N802  Horovod's name
    gradtape: tf.GradientTape, *arguments: Any, local_layers: Any = None, **named: Any
) -> Any:
    """As `DistributedGradientTape`, which leaves the gradients of some layers as each rank has them.

    Args: `local_layers`: a Keras layer, or several.
    """
    layers = [local_layers] if isinstance(local_layers, keras.layers.Layer) else list(local_layers or [])
    if not all(isinstance(layer, keras.layers.Layer) for layer in layers):
        raise UsageError(
            "local_layers contains something that is not a Keras layer.",
            "The variables of these layers stay local.",
            "give layers, or call register_local_source(variable).",
        )
    tape = DistributedGradientTape(gradtape, *arguments, **named)
    for variable in (variable for layer in layers for variable in layer.trainable_weights):
        tape.register_local_source(variable)
    return tape


def _reduced(
    gradients: list[Any],
    sources: list[Any],
    *,
    devices: tuple[str, str],
    compression: Any,
    sparse_as_dense: bool,
    op: Any,
    predivide: float,
    groups: Any,
    process_set: Any,
) -> list[Any]:
    """As Horovod reduces them; the dense ones of most programs in our buckets, with the same result."""
    is_usual = op in (mpi_ops.Average, mpi_ops.Sum) and compression in _OURS and groups is None
    in_buckets = [
        number
        for number, gradient in enumerate(gradients)
        if gradient is not None and (sparse_as_dense or not isinstance(gradient, tf.IndexedSlices))
    ]
    if not is_usual or process_set.process_set_id != 0:
        in_buckets = []
    result = list(gradients)
    if in_buckets:
        name = "average" if op == mpi_ops.Average else "sum"
        chosen = [gradients[n] for n in in_buckets], [sources[n] for n in in_buckets]
        for n, value in zip(
            in_buckets, reduce_gradients(*chosen, op=name, compression=_OURS[compression]), strict=True
        ):
            result[n] = value
    rest = [number for number in range(len(gradients)) if number not in in_buckets]
    if any(gradients[number] is not None for number in rest) and process_set.size() > 1:
        reduce = horovod._make_allreduce_grads_fn(
            "DistributedGradientTape", *devices, compression, sparse_as_dense, op, predivide, groups, process_set
        )
        for n, value in zip(rest, reduce([gradients[n] for n in rest], [sources[n] for n in rest]), strict=True):
            result[n] = value
    return result


def _divided(gradient: Any, size: int) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values / size, gradient.indices, gradient.dense_shape)
    return gradient / size


def _is_one(sources: Any) -> bool:
    return isinstance(sources, keras.Variable | tf.Variable | tf.Tensor)


def _unpacked(sources: Any) -> Any:
    return tf.nest.map_structure(lambda _: 0, sources)


def _listed(sources: Any) -> Iterable[Any]:
    return [sources] if _is_one(sources) else tf.nest.flatten(sources)
