"""The names of `horovod.tensorflow.functions`."""

from horovod.tensorflow import allgather_object, broadcast_object

from hvdtrain.tensorflow.broadcasting import broadcast_object_fn, broadcast_variables

__all__ = ["allgather_object", "broadcast_object", "broadcast_object_fn", "broadcast_variables"]
