"""The names of `horovod.tensorflow.functions` that send objects, and of its compression."""

import horovod.tensorflow as _horovod
from horovod.common import util as _util
from horovod.tensorflow import functions as _functions

Compression = _horovod.Compression
"""`Compression.none` and `Compression.fp16`: what travels of gradients."""

allgather_object = _functions.allgather_object
broadcast_object = _functions.broadcast_object
broadcast_object_fn = _functions.broadcast_object_fn
gpu_available = _util.gpu_available
