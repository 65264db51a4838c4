"""Graphs whose sums add their terms in one order, however busy the machine is: else the ranks' weights drift apart.

TensorFlow's graph optimizer (Grappler) rewrites a graph before it runs. Two of its passes make sums that depend on
time:

* The arithmetic optimizer joins `momentum · b + (g + decay · w)` into one sum of three terms (AddN).
* The memory optimizer lets a sum of three terms or more, in a graph that it thinks needs much memory, begin with zeros,
  to which each term is added as soon as it is ready. Sums of floats depend on the order of their terms, so that two
  ranks with the same gradients, momentum and weights then compute different weights.

Without the memory optimizer, AddN adds its terms in their order, except that it begins with the first term whose memory
it may use again; whether the third term is the first such one can depend on time too. So both passes are switched off
for each graph that computes what must be equal on all ranks.
"""

from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.eager import context


def keep_order_of_sums() -> None:
    """Fix the order for all `tf.function`s that this process runs from now on, those of Keras' `fit` among them."""
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
    # TensorFlow has no public option for the memory optimizer. Its context copies this one when it makes the
    # configuration of a function.
    inner = context.context()
    settings = config_pb2.ConfigProto() if inner._config is None else inner._config
    _switch_off(settings.graph_options.rewrite_options)
    inner._config = settings


def config_in_order() -> bytes:
    """A serialized ConfigProto for `tf.raw_ops.StatefulPartitionedCall`: with the user's own `tf.config.optimizer`."""
    config = config_pb2.ConfigProto()
    config.graph_options.CopyFrom(context.context().config.graph_options)
    _switch_off(config.graph_options.rewrite_options)
    serialized: bytes = config.SerializeToString()
    return serialized


def _switch_off(rewrites: Any) -> None:
    rewrites.arithmetic_optimization = rewriter_config_pb2.RewriterConfig.OFF
    rewrites.memory_optimization = rewriter_config_pb2.RewriterConfig.NO_MEM_OPT
