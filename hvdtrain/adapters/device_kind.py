"""What a worker computes with, for people."""

from __future__ import annotations


def device_kind(framework: str) -> str:
    """ "GPU" or "CPU", after `bind_device_and_threads`, of a worker in "torch" or "tensorflow"."""
    if framework == "torch":
        import torch

        return "GPU" if torch.cuda.is_available() else "CPU"
    import tensorflow as tf

    return "GPU" if tf.config.get_visible_devices("GPU") else "CPU"
