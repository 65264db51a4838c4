"""Start Horovod for a Keras script: backend, stall limits, threads, GPU, and that the launcher's word holds."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping

import horovod.tensorflow as horovod
import keras
import tensorflow as tf

from hvdtrain.adapters.threads import threads_per_worker
from hvdtrain.errors import UsageError

# Horovod warns about a stalled rank after 60 s and by default waits for ever; a finite limit makes every
# hang an error (Horovod's manual, "Stall Inspector").
STALL_DEFAULTS = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "60", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "300"}
_SIZE_VARIABLES = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE")
_THREAD_VARIABLES = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


def init() -> None:
    """Join the job. Call it first, before TensorFlow computes anything.

    Starts Horovod with a finite stall limit (60 s to the warning, 300 s to the end, unless the environment says
    otherwise), shares the machine's cores out among its workers unless threads are set, and pins the GPU of this
    local rank.

    Raises:
        UsageError: if Keras runs on another backend than TensorFlow, if a launcher announces more workers than
            Horovod finds, or if this machine has fewer GPUs than workers.
    """
    _require_tensorflow_backend()
    for name, value in STALL_DEFAULTS.items():
        os.environ.setdefault(name, value)
    horovod.init()
    refuse_lost_launcher(os.environ, horovod.size())
    _pin_gpu()
    _share_threads()


def require_init(wanted: str) -> None:
    """Raise a `UsageError` if `init` has not been called; `wanted` is what the user called instead."""
    if not horovod.is_initialized():
        raise UsageError(
            f"{wanted} was used before hvd.init().",
            "Without it no rank knows of the others.",
            "call hvd.init() as the first statement after the imports.",
        )


def refuse_lost_launcher(environ: Mapping[str, str], size: int) -> None:
    """Raise a `UsageError` where a launcher started several workers but Horovod found only this one."""
    announced = {name: environ[name] for name in _SIZE_VARIABLES if environ.get(name, "").isdigit()}
    lost = {name: value for name, value in announced.items() if int(value) > 1}
    if size == 1 and lost:
        name, value = next(iter(lost.items()))
        raise UsageError(
            f"The launcher says that there are {value} workers ({name}={value}), but Horovod started as 0 of 1.",
            "Every worker would train a model of its own on all data.",
            "start with the mpirun that Horovod was built with, or with horovodrun --gloo.",
        )


def _require_tensorflow_backend() -> None:
    backend = keras.config.backend()
    if backend != "tensorflow":
        raise UsageError(
            f"Keras runs on the {backend} backend.",
            "hvdtrain.keras reduces TensorFlow's gradients.",
            "set KERAS_BACKEND=tensorflow before keras is imported, or use hvdtrain's own training for PyTorch.",
        )


def _pin_gpu() -> None:
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return
    # One visible GPU may be the launcher's choice for this worker (CUDA_VISIBLE_DEVICES), so it is taken as it is.
    if 1 < len(gpus) < horovod.local_size():
        raise UsageError(
            f"{horovod.local_size()} workers share this machine, which shows {len(gpus)} GPUs.",
            "Two workers on one GPU run out of memory or wait for each other.",
            "start one worker per GPU.",
        )
    gpu = gpus[horovod.local_rank() % len(gpus)]
    try:
        tf.config.set_visible_devices(gpu, "GPU")
        tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError as error:
        raise UsageError(
            "TensorFlow has already taken the GPUs of this machine.",
            "A worker must take the GPU of its own local rank only.",
            "call hvd.init() before the first TensorFlow or Keras computation.",
        ) from error


def _share_threads() -> None:
    chosen_in_script = tf.config.threading.get_intra_op_parallelism_threads()
    if chosen_in_script or any(name in os.environ for name in _THREAD_VARIABLES):
        return
    threads = threads_per_worker(horovod.local_size(), os.environ)
    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(max(2, threads))
    except RuntimeError:
        warnings.warn(
            "TensorFlow had computed before hvd.init(), so each worker keeps using all cores; call hvd.init() first.",
            stacklevel=3,
        )
