"""`tf.GradientTape` whose gradients are reduced over ranks."""

import warnings
from typing import Any

import horovod.tensorflow as horovod
import tensorflow as tf

from hvdtrain.tensorflow.gradient_reduction import GradientReduction
from hvdtrain.tensorflow.keras_variables import unwrapped
from hvdtrain.tensorflow.reduced_sources import ReducedSources, local_variables
from hvdtrain.tensorflow.start import require_init


class ReducingTape(tf.GradientTape):  # type: ignore[misc]
    """What `DistributedGradientTape` makes of a tape: it shares what the tape has recorded."""

    _reduced: ReducedSources

    def register_local_source(self, source: Any) -> None:
        """Keep the gradient of a variable on its rank. Call it on every rank for the same variables."""
        self._reduced.keep_local(source)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,  # noqa: ARG002 (names are the same on every rank anyway)
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """As `tf.GradientTape.gradient`, reduced. Collective; `sources` may be Keras variables, in any structure."""
        plain = tf.nest.map_structure(unwrapped, sources)
        gradients = super().gradient(target, plain, output_gradients, unconnected_gradients)
        flat = tf.nest.flatten(sources)
        one_each = [gradients] if len(flat) == 1 and not tf.nest.is_nested(sources) else tf.nest.flatten(gradients)
        return tf.nest.pack_sequence_as(sources, self._reduced.reduce(one_each, flat))

    def get_local_and_global_gradients(
        self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Pairs of a source and its gradient: those that stayed local, and those that were reduced. Collective."""
        pairs = list(zip(sources, self.gradient(target, sources, output_gradients, use_generic_names), strict=True))
        local = [pair for pair in pairs if self._reduced.is_local(pair[0])]
        return local, [pair for pair in pairs if not self._reduced.is_local(pair[0])]


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def DistributedGradientTape(  # noqa: N802 (Horovod's name)
    gradtape: Any,
    device_dense: str = "",  # noqa: ARG001 (Horovod's arguments)
    device_sparse: str = "",  # noqa: ARG001
    compression: Any = horovod.Compression.none,
    sparse_as_dense: bool = False,
    op: Any = horovod.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = horovod.global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """A tape with all that `gradtape` has recorded, whose `gradient` reduces over ranks.

    Args:
        gradtape: a `tf.GradientTape`, before or after its `with`.
        device_dense, device_sparse: accepted, as in Horovod; TensorFlow places the operations.
        num_groups: Horovod's older name of `groups`.
        scale_local_gradients: gradients of local sources are divided by the number of ranks, too.
        The others: see `GradientReduction`.

    Raises:
        UsageError: before `hvd.init()`, and for arguments that exclude each other.
    """
    require_init("hvd.DistributedGradientTape")
    reduction = GradientReduction(
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        predivide=gradient_predivide_factor,
        groups=newer_groups(num_groups, groups),
        process_set=process_set,
    )
    kind = type(gradtape)
    # A subclass, as Horovod makes, so that it remains the kind of tape that it was.
    bases = (ReducingTape,) if kind is tf.GradientTape else (ReducingTape, kind)
    tape: Any = object.__new__(type(kind.__name__, bases, {}))
    vars(tape).update(vars(gradtape))
    vars(tape)["_reduced"] = ReducedSources(reduction, scale_local_gradients)
    return tape


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def PartialDistributedGradientTape(  # noqa: N802 (Horovod's name)
    gradtape: Any, *args: Any, local_layers: Any = None, **options: Any
) -> Any:
    """`DistributedGradientTape`, except that gradients of `local_layers` (one Keras layer or several) stay local."""
    tape = DistributedGradientTape(gradtape, *args, **options)
    for variable in local_variables(local_layers):
        tape.register_local_source(variable)
    return tape


def newer_groups(num_groups: int, groups: Any) -> Any:
    """`groups`, or what its older name `num_groups` says."""
    if num_groups == 0:
        return groups
    warnings.warn("`num_groups` is Horovod's older name: use `groups`.", DeprecationWarning, stacklevel=3)
    return num_groups if groups is None else groups
