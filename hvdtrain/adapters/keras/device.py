"""This worker's device in TensorFlow: its threads, its GPU, and which arithmetic kernels and models use."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import keras
import tensorflow as tf

from hvdtrain.adapters.keras.compiled import keep_order_of_sums
from hvdtrain.adapters.worker_device import gpu_of_worker, no_tf32, threads_per_worker
from hvdtrain.config.training_options import Precision
from hvdtrain.errors import UsageError

_POLICIES = {"bf16": "mixed_bfloat16", "fp16": "mixed_float16"}
_THREAD_VARIABLES = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


def bind_device_and_threads(local_rank: int, local_size: int) -> None:
    """As `take_share`, for a training by tasks, of which one process may do several."""
    keras.backend.clear_session()  # a second one calls its layers as the first did
    take_share(local_rank, local_size)


def take_share(local_rank: int, local_size: int) -> None:
    """Use the GPU of `local_rank` only, and 1/`local_size` of the cores unless the user chose otherwise.

    Sums in graphs add their terms in one order from now on (`compiled`).

    Must run before TensorFlow's first operation, and Horovod's first collective is one.

    Raises `UsageError`: fewer GPUs than workers, or TensorFlow has computed already on all GPUs.
    """
    _pin_gpu(local_rank, local_size)
    _share_threads(local_size)
    keep_order_of_sums()


def device_kind() -> str:
    """ "GPU" or "CPU"."""
    return "GPU" if tf.config.get_visible_devices("GPU") else "CPU"


def _pin_gpu(local_rank: int, local_size: int) -> None:
    gpus = tf.config.list_physical_devices("GPU")
    gpu = gpu_of_worker(len(gpus), local_rank, local_size)
    if gpu is None:
        return
    try:
        tf.config.set_visible_devices(gpus[gpu], "GPU")
        tf.config.experimental.set_memory_growth(gpus[gpu], True)
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


def require_threads() -> None:
    """Raise `UsageError` where TensorFlow does not compute with the threads that OMP_NUM_THREADS says."""
    wanted, chosen = os.environ.get("OMP_NUM_THREADS", ""), tf.config.threading.get_intra_op_parallelism_threads()
    if wanted.isdigit() and chosen != int(wanted):
        raise UsageError(
            f"TensorFlow computes with {chosen or 'other'} threads, and --virtual-workers needs {wanted} of them.",
            "Their number changes the last bits, and was chosen by TF_NUM_INTRAOP_THREADS, or before hvdtrain started.",
            "leave that out, and give --compute-threads.",
        )


def apply_settings(precision: Precision, deterministic: bool) -> None:
    """Choose kernels for this process.

    float32 means float32 unless tf32 is asked for: TensorFlow uses TF32 by default.

    Raises `UsageError`: the device cannot compute in `precision`.
    """
    if precision == "tf32":
        _require_tf32()
    tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
    if deterministic:
        tf.config.experimental.enable_op_determinism()


@contextmanager
def built_for(precision: Precision) -> Iterator[None]:
    """Models that are built inside compute in `precision`; their weights are float32."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(_POLICIES.get(precision, before))
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def memory_peak() -> int | None:
    """Bytes that tensors on this worker's GPU took at most since the start of the process; None on the CPU."""
    if not tf.config.list_logical_devices("GPU"):
        return None
    try:
        return int(tf.config.experimental.get_memory_info("GPU:0")["peak"])  # of those that it sees, it uses one
    except ValueError:  # not every allocator counts
        return None


def _require_tf32() -> None:
    gpus = tf.config.get_visible_devices("GPU")
    capabilities = [tf.config.experimental.get_device_details(gpu).get("compute_capability", (0, 0)) for gpu in gpus]
    if not capabilities or min(capabilities) < (8, 0):
        raise no_tf32("an older GPU" if gpus else "the CPU")
