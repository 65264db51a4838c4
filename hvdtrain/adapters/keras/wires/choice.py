"""Which wire is asked for. Those that import Horovod are imported where one is taken: one process does not need it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import tensorflow as tf

from hvdtrain import powersgd
from hvdtrain.adapters.adasum import require_adasum
from hvdtrain.adapters.keras.wires.interface import Wire
from hvdtrain.adapters.keras.wires.powersgd import PowerSgd, Summed
from hvdtrain.knobs import Knobs


def open_wire(variables: Sequence[Any], knobs: Knobs, alone: bool) -> Wire:
    """The wire.

    Args:
        variables: all that are trained, in the model's order.
        knobs: compression, its rank and the reduce op.
        alone: one process, without Horovod; it needs a wire for PowerSGD only, which changes gradients there too.

    Raises:
        UsageError: Horovod has no such op here.
    """
    if alone:
        return _powersgd(_already_the_sum, 1, variables, knobs)
    import horovod.tensorflow as horovod

    from hvdtrain.adapters.keras.wires.adasum import Adasum
    from hvdtrain.adapters.keras.wires.bf16 import BFloat16
    from hvdtrain.adapters.keras.wires.grouped import Float16, Grouped

    size = horovod.size()
    share_factor = 1.0 if knobs.reduce_op == "average" else float(size)
    if knobs.reduce_op == "adasum":
        require_adasum(horovod, on_gpu=bool(tf.config.get_visible_devices("GPU")))
        return Adasum()
    if knobs.compression == "powersgd":

        def summed(flat: Any, name: str) -> Any:
            return horovod.allreduce(flat, op=horovod.Sum, name=name, ignore_name_scope=True)

        return _powersgd(summed, size, variables, knobs)
    if knobs.compression == "fp16":
        return Float16(1 / share_factor, share_factor, share_factor)
    if knobs.compression == "bf16":
        return BFloat16(average=False, share_factor=share_factor)
    return Grouped("sum", share_factor)


def wire_of(op: Literal["average", "sum"], compression: Literal["fp16", "bf16"] | None) -> Wire | None:
    """The wire for gradients of losses that know nothing of other ranks; None for one rank."""
    import horovod.tensorflow as horovod

    from hvdtrain.adapters.keras.wires.bf16 import BFloat16
    from hvdtrain.adapters.keras.wires.grouped import Float16, Grouped

    size = horovod.size()
    if size == 1:
        return None
    if compression == "fp16":
        return Float16(1 / size, 1.0 if op == "average" else size)
    if compression == "bf16":
        return BFloat16(average=op == "average")
    return Grouped(op)


def _powersgd(summed: Summed, size: int, variables: Sequence[Any], knobs: Knobs) -> PowerSgd:
    rank = knobs.powersgd_rank or powersgd.DEFAULT_RANK
    return PowerSgd(summed, variables, size, rank, total=knobs.reduce_op == "sum")


def _already_the_sum(flat: Any, name: str) -> Any:  # noqa: ARG001  of one rank
    return flat
