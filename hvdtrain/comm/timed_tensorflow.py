"""Horovod's allreduce of TensorFlow tensors, in a graph function, as gradients go: for measurements."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import horovod.tensorflow as hvd
import tensorflow as tf


@final
class TensorFlowAllreduce:
    """Implements `hvdtrain.doctor.allreduce.Prepared`: on this worker's GPU where it has one, else on the CPU."""

    def __init__(self) -> None:
        on_gpu = bool(tf.config.list_logical_devices("GPU"))
        self.device = "/gpu:0" if on_gpu else "/cpu:0"
        self.kind = "nccl" if on_gpu and hvd.nccl_built() else "mpi" if hvd.mpi_enabled() else "gloo"

    def prepare(self, elements: int) -> Callable[[], None]:
        """A function that sums a float32 tensor of so many elements over all ranks, and returns when that is done."""
        name = f"hvdtrain.bench.{elements}"
        with tf.device(self.device):
            tensor = tf.zeros(elements, tf.float32)

        @tf.function(autograph=False)  # type: ignore[untyped-decorator]
        def total() -> object:
            with tf.device(self.device):
                return hvd.allreduce(tensor, op=hvd.Sum, name=name, ignore_name_scope=True)[:1]

        def run() -> None:
            total().numpy()

        return run
