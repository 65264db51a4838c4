"""Which wire is asked for. Those that import Horovod are imported where one is taken: one process does not need it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import tensorflow as tf

from hvdtrain.adapters.adasum import require_adasum
from hvdtrain.adapters.keras.comm_hooks.interface import CommHook
from hvdtrain.adapters.keras.comm_hooks.powersgd import PowerSgd, Summed
from hvdtrain.algorithms import powersgd
from hvdtrain.config.training_options import TrainingOptions


def open_comm_hook(variables: Sequence[Any], options: TrainingOptions, alone: bool) -> CommHook:
    """The wire.

    Args:
        variables: all that are trained, in the model's order.
        options: compression, its rank and the reduce op.
        alone: one process, without Horovod; it needs a wire for PowerSGD only, which changes gradients there too.

    Raises:
        UsageError: Horovod has no such op here.
    """
    if alone:
        return _powersgd(_already_the_sum, 1, variables, options)
    import horovod.tensorflow as horovod

    from hvdtrain.adapters.keras.comm_hooks.adasum import Adasum
    from hvdtrain.adapters.keras.comm_hooks.bf16 import BFloat16
    from hvdtrain.adapters.keras.comm_hooks.grouped import Float16, Grouped

    size = horovod.size()
    loss_multiplier = 1.0 if options.reduce_op == "average" else float(size)
    if options.reduce_op == "adasum":
        require_adasum(horovod, on_gpu=bool(tf.config.get_visible_devices("GPU")))
        return Adasum()
    if options.compression == "powersgd":

        def summed(flat: Any, name: str) -> Any:
            return horovod.allreduce(flat, op=horovod.Sum, name=name, ignore_name_scope=True)

        return _powersgd(summed, size, variables, options)
    if options.compression == "fp16":
        return Float16(1 / loss_multiplier, loss_multiplier, loss_multiplier)
    if options.compression == "bf16":
        return BFloat16(average=False, loss_multiplier=loss_multiplier)
    return Grouped("sum", loss_multiplier)


def comm_hook_of(op: Literal["average", "sum"], compression: Literal["fp16", "bf16"] | None) -> CommHook | None:
    """The wire for gradients of losses that know nothing of other ranks; None for one rank."""
    import horovod.tensorflow as horovod

    from hvdtrain.adapters.keras.comm_hooks.bf16 import BFloat16
    from hvdtrain.adapters.keras.comm_hooks.grouped import Float16, Grouped

    size = horovod.size()
    if size == 1:
        return None
    if compression == "fp16":
        return Float16(1 / size, 1.0 if op == "average" else size)
    if compression == "bf16":
        return BFloat16(average=op == "average")
    return Grouped(op)


def _powersgd(summed: Summed, size: int, variables: Sequence[Any], options: TrainingOptions) -> PowerSgd:
    rank = options.powersgd_rank or powersgd.DEFAULT_RANK
    return PowerSgd(summed, variables, size, rank, total=options.reduce_op == "sum")


def _already_the_sum(flat: Any, name: str) -> Any:  # noqa: ARG001  of one rank
    return flat
