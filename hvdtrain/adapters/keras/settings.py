"""Which arithmetic TensorFlow's kernels use, and which precision a model is built for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import keras
import tensorflow as tf

from hvdtrain.config.training_options import Precision
from hvdtrain.errors import UsageError

_POLICIES = {"bf16": "mixed_bfloat16", "fp16": "mixed_float16"}


def apply_settings(precision: Precision, deterministic: bool) -> None:
    """Choose kernels for this process.

    float32 means float32 unless tf32 is asked for: TensorFlow uses TF32 by default.

    Raises:
        UsageError: the device cannot compute in `precision`.
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


def _require_tf32() -> None:
    gpus = tf.config.get_visible_devices("GPU")
    capabilities = [tf.config.experimental.get_device_details(gpu).get("compute_capability", (0, 0)) for gpu in gpus]
    if not capabilities or min(capabilities) < (8, 0):
        raise UsageError(
            "--precision tf32 is asked for on a device without TF32.",
            f"This worker computes on {'an older GPU' if gpus else 'the CPU'}; TF32 is the arithmetic of NVIDIA's "
            "GPUs since Ampere.",
            "use --precision fp32, or bf16.",
        )
