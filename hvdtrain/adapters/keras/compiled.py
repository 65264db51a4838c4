"""Compiled steps, called without what TensorFlow does again at each call of a function.

Their sums add their terms in one order, however busy the machine is: else the ranks' weights drift apart. TensorFlow's
graph optimizer (Grappler) rewrites a graph before it runs. Two of its passes make sums that depend on time:

* The arithmetic optimizer joins `momentum · b + (g + decay · w)` into one sum of three terms (AddN).
* The memory optimizer lets a sum of three terms or more, in a graph that it thinks needs much memory, begin with zeros,
  to which each term is added as soon as it is ready. Sums of floats depend on the order of their terms, so that two
  ranks with the same gradients, momentum and weights then compute different weights.

Without the memory optimizer, AddN adds its terms in their order, except that it begins with the first term whose memory
it may use again; whether the third term is the first such one can depend on time too. So both passes are switched off
for each graph that computes what must be equal on all ranks.
"""

import re
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.eager import context
from tensorflow.python.framework.auto_control_deps_utils import get_read_write_resource_inputs

from data_sharding import LoadedBatch

_EXECUTOR = "DEFAULT"
"""Runs operations as soon as their inputs are ready. Without a name one thread runs them one by one and waits for each:
two collectives then begin in another order on each rank, and neither ends."""


def keep_order_of_sums() -> None:
    """Fix the order for all `tf.function`s that this process runs from now on, those of Keras' `fit` among them."""
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
    # TensorFlow has no public option for the memory optimizer. Its context copies this one when it makes the
    # configuration of a function.
    inner = context.context()
    settings = config_pb2.ConfigProto() if inner._config is None else inner._config
    _switch_off(settings.graph_options.rewrite_options)
    inner._config = settings


def keep_passes_equal() -> None:
    """Let a pass compute the same bits in each graph that it is a part of, in all `tf.function`s from now on.

    With virtual workers it is a part of several: that of the last one on a worker also sends gradients, and others note
    or repeat. What constant folding makes of a pass (it also moves constants through products and sums) depends on the
    rest of the graph: gradients of a transformer differed.
    """
    tf.config.optimizer.set_experimental_options({"constant_folding": False})


def _config_in_order() -> bytes:
    """A serialized ConfigProto for `tf.raw_ops.StatefulPartitionedCall`: with the user's own `tf.config.optimizer`."""
    config = config_pb2.ConfigProto()
    config.graph_options.CopyFrom(context.context().config.graph_options)
    _switch_off(config.graph_options.rewrite_options)
    serialized: bytes = config.SerializeToString()
    return serialized


def _switch_off(rewrites: Any) -> None:
    rewrites.arithmetic_optimization = rewriter_config_pb2.RewriterConfig.OFF
    rewrites.memory_optimization = rewriter_config_pb2.RewriterConfig.NO_MEM_OPT


def graph(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compile without AutoGraph, which reads the sources of all that is called: only the task's code may need it."""
    compiled: Callable[..., Any] = tf.function(function, autograph=False, **options)
    return compiled


class CompiledStep:
    """One graph for each set of shapes and dtypes of a batch's features.

    A call of a `tf.function` compares its tensors with all that it was traced for, which takes longer than a small
    step. Here the caller says what differs between two batches, and the graph is run by TensorFlow's operation for
    that. On a GPU this operation would place all of its inputs there, those too that a step reads on the host: there
    the function is called as usual.

    Args:
        function: takes and returns tensors, in flat or nested structures for its arguments and a flat list or None
            for what it returns.
        any_length: one graph serves tensors of any first dimension.
    """

    def __init__(self, function: Callable[..., Any], any_length: bool = False) -> None:
        self._function = graph(function, reduce_retracing=any_length)
        self._any_length = any_length
        self._graphs: dict[object, tuple[Any, list[tf.DType], bytes]] = {}
        self._is_direct = not tf.config.get_visible_devices("GPU")

    def __call__(self, layout: object, *arguments: Any) -> Any:
        """Run it.

        Args:
            layout: equal for two calls only if all of their tensors have the same shapes and dtypes, but for the first
                dimension where `any_length` is set. Hashable.
            arguments: tensors, or dicts of tensors.
        """
        if not self._is_direct:
            return self._function(*arguments)
        traced, dtypes, config = self._graphs.get(layout) or self._trace(layout, arguments)
        tensors = [*tf.nest.flatten(arguments), *traced.captured_inputs]
        try:
            return tf.raw_ops.StatefulPartitionedCall(
                args=tensors, Tout=dtypes, f=traced, config_proto=config, executor_type=_EXECUTOR
            )
        except tf.errors.OpError as error:
            for node in re.findall(r"\{\{node ([^}]+)\}\}", error.message):
                error.add_note(_place_of(node, traced.graph))
            raise

    def writes(self, layout: object, variables: Sequence[Any]) -> list[Any]:
        """Which of these variables of Keras its graph for the layout writes, in any branch or loop.

        Nothing is known where no graph was made for it, as on GPUs.
        """
        if layout not in self._graphs:
            return []
        graph = self._graphs[layout][0].graph
        written = [tensor for each in graph.get_operations() for tensor in get_read_write_resource_inputs(each)[1]]
        inner = {tensor.ref() for tensor in written}
        handles = {id(outer) for outer, tensor in graph.captures if tensor.ref() in inner}
        return [variable for variable in variables if id(variable.value.handle) in handles]

    def _trace(self, layout: object, arguments: tuple[Any, ...]) -> tuple[Any, list[tf.DType], bytes]:
        if self._any_length:
            arguments = tf.nest.map_structure(lambda t: tf.TensorSpec([None, *t.shape[1:]], t.dtype), arguments)
        traced = self._function.get_concrete_function(*arguments)  # type: ignore[attr-defined]
        self._graphs[layout] = traced, [output.dtype for output in traced.outputs], _config_in_order()
        return self._graphs[layout]


def _place_of(node: str, within: tf.Graph) -> str:
    """Say where Python made an operation of a graph, or the one that it is a part of, as a `tf.function` does."""
    graphs = [within, *(function.graph for function in within._functions.values())]  # a loop's body is one of them
    names = {operation.name: operation for graph in graphs for operation in graph.get_operations()}
    name = node
    while name not in names and "/" in name:
        name = name.rpartition("/")[0]
    if name not in names:
        return f"TensorFlow's operation {node} is of its own making."
    frames = "".join(traceback.format_list(names[name].traceback))
    return f"TensorFlow's operation {node} was defined at (most recent call last):\n{frames}"


class SeveralSteps:
    """A loop over batches in a graph, which changes the same variables in the same order as one call for each does.

    So a small model does not wait for Python at each step (Keras: `steps_per_execution`, MindSpore: data sinking).

    Args: `step`: traced once; as `KerasAdapter` trains a batch: its features, weights and packed `StepNumbers` →
    whether weights were changed, and the norm of the gradients, float32.
    """

    def __init__(self, step: Callable[..., Any]) -> None:
        self._step = step
        self._run = CompiledStep(self._loop, any_length=True)

    def __call__(self, layout: object, batches: Sequence[LoadedBatch], numbers: Sequence[NDArray[np.float64]]) -> Any:
        features = {
            name: tf.constant(np.stack([batch.features[name] for batch in batches])) for name in batches[0].features
        }
        weights = tf.constant(np.stack([batch.weights for batch in batches]))
        return self._run(layout, features, weights, tf.constant(np.stack(numbers)))[0]

    def _loop(self, features: dict[str, Any], weights: Any, numbers: Any) -> list[Any]:
        count = tf.shape(numbers)[0]

        def train(i: Any, norms: Any) -> tuple[Any, Any]:
            _, norm = self._step({name: values[i] for name, values in features.items()}, weights[i], numbers[i])
            return i + 1, norms.write(i, norm)

        # One after the other: a step needs the weights that the one before it leaves, and its collectives have the
        # same names.
        first = tf.constant(0), tf.TensorArray(tf.float32, size=count, element_shape=[])
        _, norms = tf.while_loop(lambda i, _: i < count, train, first, parallel_iterations=1)
        return [norms.stack()]


class StepNumbers(NamedTuple):
    """What differs between two steps beside their records: numbers on the host, tensors within a graph.

    They are packed into one tensor, which takes as long to make as a small operation in the graph.
    """

    step: Any  # of the run; int64
    lr: Any  # learning rate; float32
    scale: Any  # of the loss; float32
    global_weight: Any  # the weights of all records of the global batch added up; float32
    seeds: Any  # of random states, uint32 of shape [states, 2] in a graph, 64 bits each on the host

    def packed(self) -> NDArray[np.float64]:
        """Return an array of shape [4 + 2 · states]; float64 holds each of these numbers exactly."""
        halves = [half for seed in self.seeds for half in (seed >> 32, seed & 0xFFFFFFFF)]
        return np.array([*self[:-1], *halves], np.float64)

    @classmethod
    def unpacked(cls, packed: Any) -> "StepNumbers":
        """What `packed` returned, as a tensor in a graph."""
        lr, scale, global_weight = tf.unstack(tf.cast(packed[1:4], tf.float32))
        seeds = tf.reshape(tf.cast(packed[4:], tf.uint32), [-1, 2])
        return cls(tf.cast(packed[0], tf.int64), lr, scale, global_weight, seeds)
