"""This worker's share of the machine, in TensorFlow: its threads and its GPU.

Must run before TensorFlow's first operation, and Horovod's first collective is one.
"""

from __future__ import annotations

import os
import warnings

import keras
import tensorflow as tf

from hvdtrain.adapters.threads import threads_per_worker
from hvdtrain.errors import UsageError

_THREAD_VARIABLES = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


def bind_device_and_threads(local_rank: int, local_size: int) -> None:
    """Use the GPU of `local_rank` only, and 1/`local_size` of the cores unless the user chose otherwise.

    Raises:
        UsageError: fewer GPUs than workers, or TensorFlow has computed already on all GPUs.
    """
    keras.backend.clear_session()  # a second training in one process calls its layers as the first did
    _pin_gpu(local_rank, local_size)
    _share_threads(local_size)


def _pin_gpu(local_rank: int, local_size: int) -> None:
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return
    # One visible GPU may be the launcher's choice for this worker (CUDA_VISIBLE_DEVICES), so it is taken as it is.
    if 1 < len(gpus) < local_size:
        raise UsageError(
            f"{local_size} workers share this machine, which shows {len(gpus)} GPUs.",
            "Two workers on one GPU run out of memory or wait for each other.",
            "start one worker per GPU.",
        )
    gpu = gpus[local_rank % len(gpus)]
    try:
        tf.config.set_visible_devices(gpu, "GPU")
        tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError as error:
        raise UsageError(
            "TensorFlow has already taken the GPUs of this machine.",
            "A worker must take the GPU of its own local rank only.",
            "let hvdtrain (or hvd.init()) run before the first TensorFlow or Keras computation.",
        ) from error


def _share_threads(local_size: int) -> None:
    chosen_in_script = tf.config.threading.get_intra_op_parallelism_threads()
    if chosen_in_script or any(name in os.environ for name in _THREAD_VARIABLES):
        return
    threads = threads_per_worker(local_size, os.environ)
    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(max(2, threads))
    except RuntimeError:
        warnings.warn(
            "TensorFlow had computed before its threads could be set, so each worker keeps using all cores.",
            stacklevel=2,
        )
