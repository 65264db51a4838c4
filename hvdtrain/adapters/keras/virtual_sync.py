"""Gradients of virtual workers in Keras, summed in one order whatever number of workers there is (`summation_tree`).

What is sent, and why, is explained in `hvdtrain.adapters.torch.virtual_sync`. Here the sums of a worker's own virtual
workers are in variables between their graphs; the graph of the last one joins its gradients to them and sends all.
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from operator import add
from typing import Any, Final

import keras
import tensorflow as tf
from numpy.typing import NDArray

from hvdtrain.adapters.choose_sync import ChosenSync
from hvdtrain.adapters.keras.comm_hooks import CommHook, GradBucket, cut, flattened
from hvdtrain.adapters.keras.compiled import graph
from hvdtrain.adapters.keras.gradient_sync import SummedGradients
from hvdtrain.adapters.keras.graph_clock import Waiting
from hvdtrain.adapters.keras.state import seed_states
from hvdtrain.adapters.tree_exchange import all_parts, allreduce_follows_tree, slice_lengths
from hvdtrain.adapters.worker_states import AlternatingStates
from hvdtrain.algorithms.summation_tree import TreeSum, subtrees, sum_of_subtrees
from hvdtrain.errors import UsageError
from hvdtrain.topology.virtual_workers import VirtualWorkers

_SENT_AS: Final = {"plain": None, "fp16": tf.float16, "bf16": tf.bfloat16}
_LEAF: Final = -1

Parts = list[tuple[range, list[Any]]]
"""Sums of virtual workers' gradients: of which, and a dense gradient or None for each variable."""


class TreeReduction(CommHook):
    """Sums buckets along the tree. Compressed gradients are rounded before they are added, and after each addition.

    Args: `hvd`: Horovod's module; None: this is the only worker.

    Attributes: `parts`: what this worker has summed itself, set before buckets are reduced.
    """

    parts: Parts

    def __init__(self, hvd: Any, workers: VirtualWorkers, compression: str) -> None:
        super().__init__()
        self._hvd, self._workers, self._compressed = hvd, workers, _SENT_AS[compression]
        # TensorFlow's threads, unlike Horovod's, turn numbers below the normal ones into zeros: after a sum of two
        # terms (`_total`) that is the same, between those of three it is not.
        follows_tree = allreduce_follows_tree(workers, adds_in_order=False)
        self._by_allreduce = self._compressed is None and follows_tree
        self.reduces_in_place = self._by_allreduce and workers.count == workers.size

    def sent_as(self, dtype: tf.DType) -> tf.DType:
        return super().sent_as(dtype) if self._compressed is None else self._compressed

    def reduce(self, bucket: GradBucket) -> list[Any]:
        places = [gradient.place for gradient in bucket.gradients]
        flat = [flattened([part[place] for place in places], bucket.dtype) for _, part in self.parts]
        parts = cut(self._total(flat, bucket.name), [gradient.shape for gradient in bucket.gradients])
        return [tf.cast(part, gradient.value.dtype) for part, gradient in zip(parts, bucket.gradients, strict=True)]

    def _total(self, flat: list[Any], name: str) -> Any:
        if self._hvd is None:
            return flat[0]
        if self._by_allreduce and flat[0].dtype.size > 2:  # else sums are rounded in other ways
            total = self._hvd.allreduce(flat[0], op=self._hvd.Sum, name=name, ignore_name_scope=True)
            return total * tf.ones([], total.dtype)  # turns them into zeros
        return self._by_slices(flat, name)

    def _by_slices(self, flat: list[Any], name: str) -> Any:
        workers, (numbers,) = self._workers, flat[0].shape
        parts, lengths = all_parts(workers), slice_lengths(numbers, workers.size)
        slices = zip(*(tf.split(each, lengths) for each in flat), strict=True)
        sent = flat[0] if len(flat) == 1 else tf.concat([part for same in slices for part in same], 0)
        splits = tf.constant([len(flat) * length for length in lengths], tf.int32)
        received, _ = self._hvd.alltoall(_bits(sent), splits, name=f"{name}_parts", ignore_name_scope=True)
        rows = tf.unstack(tf.reshape(_numbers(received, sent.dtype), [len(parts), lengths[workers.rank]]))
        own = sum_of_subtrees(zip(parts, rows, strict=True), workers.count, add)
        sums = self._hvd.allgather(_bits(own), name=f"{name}_sums", ignore_name_scope=True)
        return tf.ensure_shape(_numbers(sums, sent.dtype), [numbers])


def _bits(tensor: Any) -> Any:
    """In a dtype that Horovod can send."""
    return tf.bitcast(tensor, tf.int16) if tensor.dtype.size == 2 else tensor


def _numbers(tensor: Any, dtype: tf.DType) -> Any:
    return tf.bitcast(tensor, dtype) if dtype.size == 2 else tensor


class WorkersGradients(SummedGradients):
    """Sums the gradients of all virtual workers. Each micro batch is that of one of them."""

    _hook: TreeReduction

    def __init__(self, variables: Sequence[Any], chosen: ChosenSync, workers: VirtualWorkers, waiting: Waiting) -> None:
        super().__init__(variables, chosen, waiting, TreeReduction(_horovod(workers), workers, chosen.hook))
        self._workers = workers
        self._tree = self._new_tree()
        slots = _sums_at_once(workers)
        self._leaf: list[tf.Variable] = self._variables_for_sums() if slots else []
        self._slots = [self._variables_for_sums() for _ in range(slots)]
        self._put = [graph(partial(_assign, slot, self._leaf)) for slot in self._slots]
        self._add_leaf = [graph(partial(_assign_add, slot, self._leaf)) for slot in self._slots]
        self._add_next = [graph(partial(_assign_add, *pair)) for pair in pairwise(self._slots)]

    def _new_tree(self) -> TreeSum[int]:
        """Values are numbers of slots, or `_LEAF`."""
        return TreeSum(self._workers.count, self._joined)

    def _variables_for_sums(self) -> list[tf.Variable]:
        return [tf.Variable(tf.zeros(v.shape, self._sum_dtype(v)), trainable=False) for v in self._variables]

    def _sum_dtype(self, variable: Any) -> tf.DType:
        return self._hook.sent_as(tf.as_dtype(variable.dtype))

    def add(self, gradients: Sequence[Any]) -> None:
        """Put aside those of a virtual worker that others follow. Called while steps are traced."""
        for variable, gradient in zip(self._leaf, gradients, strict=True):
            if gradient is not None:
                variable.assign(tf.cast(tf.convert_to_tensor(gradient), variable.dtype))

    def end_worker(self, worker: int) -> None:
        """The graph with `add` has run for this one: join it to the sums."""
        if worker == self._workers.own.start:
            self._tree = self._new_tree()
        self._tree.push(range(worker, worker + 1), _LEAF)
        terms, value = self._tree.parts[-1]
        if value == _LEAF:
            slot = len(self._tree.parts) - 1
            self._put[slot]()
            self._tree.parts[-1] = terms, slot

    def _joined(self, left: int, right: int) -> int:
        if right == _LEAF:
            self._add_leaf[left]()
        else:
            self._add_next[left]()
        return left

    def take(self, gradients: Sequence[Any]) -> Sequence[Any]:
        """The last virtual worker's gradients, which join the sums that the hook is given. Called as `add`."""
        own = self._workers.own
        tree: TreeSum[list[Any]] = TreeSum(self._workers.count, _added)
        before = subtrees(own[:-1], self._workers.count)
        for terms, slot in zip(before, self._slots, strict=False):
            there = zip(slot, gradients, strict=True)
            tree.push(terms, [None if gradient is None else variable.value() for variable, gradient in there])
        tree.push(own[-1:], [self._as_sum(*pair) for pair in zip(gradients, self._variables, strict=True)])
        self._hook.parts = tree.parts
        return gradients

    def _as_sum(self, gradient: Any, variable: Any) -> Any:
        return None if gradient is None else tf.cast(tf.convert_to_tensor(gradient), self._sum_dtype(variable))


def _horovod(workers: VirtualWorkers) -> Any:
    """Its module; None where this is the only worker."""
    if workers.size == 1:
        return None
    import horovod.tensorflow

    return horovod.tensorflow


def _sums_at_once(workers: VirtualWorkers) -> int:
    """How many sums a worker keeps at most before the gradients of its last virtual worker come."""
    own = workers.own
    return max((len(subtrees(own[:count], workers.count)) for count in range(1, len(own))), default=0)


def _assign(variables: list[tf.Variable], values: list[tf.Variable]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _assign_add(variables: list[tf.Variable], values: list[tf.Variable]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign_add(value)


def _added(left: list[Any], right: list[Any]) -> list[Any]:
    return [None if a is None else a + b for a, b in zip(left, right, strict=True)]


class KerasWorkerStates(AlternatingStates[Any]):
    """All variables of the model that no gradient moves, but random seeds.

    Raises `UsageError`: a layer changes its weights in each pass; or as the other class.
    """

    def __init__(self, model: Any, arrays: Any, workers: VirtualWorkers) -> None:
        for layer in model._flatten_layers():
            if isinstance(layer, keras.layers.SpectralNormalization):
                raise UsageError(
                    f"--virtual-workers is given, and the model has the layer {layer.name!r} (SpectralNormalization).",
                    "It changes its weights in each pass, and so once for each virtual worker of a worker.",
                    "leave it out, or --virtual-workers.",
                )
        super().__init__(model, arrays, workers)

    def _read(self) -> list[Any]:
        return [tf.identity(variable.value) for variable in self._moving()]

    def _write(self, values: list[Any]) -> None:
        for variable, value in zip(self._moving(), values, strict=True):
            variable.assign(value)

    def stamp(self) -> list[NDArray[Any]]:
        return [value.numpy() for value in self._read()]

    def changed_since(self, stamp: list[NDArray[Any]]) -> list[str]:
        pairs = zip(self._moving(), self.stamp(), stamp, strict=True)
        return [variable.path for variable, now, then in pairs if now.tobytes() != then.tobytes()]

    def _moving(self) -> list[keras.Variable]:
        seeds = {id(variable) for variable in seed_states(self._model)}
        return [variable for variable in self._model.non_trainable_variables if id(variable) not in seeds]
