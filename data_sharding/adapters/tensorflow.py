"""TensorFlow: one rank's batches of a plan as a `tf.data.Dataset`."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Unpack

import numpy as np
import tensorflow as tf

from data_sharding.loading.decode_processes import DecodeProcesses
from data_sharding.loading.decoding import Decode
from data_sharding.loading.shard_loader import LoaderOptions, ShardLoader
from data_sharding.plan.shard_plan import ShardPlan
from data_sharding.reading.record_reader import RecordReader


class TensorFlowBatch(NamedTuple):
    """Element of the data set, one rank's part of one step, k records: `LoadedBatch` in tensors.

    `step` is an int64 scalar, `global_weight` a float32 scalar; `weights` are `sample_weight` for Keras.
    """

    step: Any
    ids: Any
    weights: Any
    features: dict[str, Any]
    global_weight: Any


def as_tf_dataset(
    plan: ShardPlan,
    reader: RecordReader,
    decode: Decode | DecodeProcesses,
    *,
    start_step: int = 0,
    feature_signature: dict[str, Any] | None = None,
    **options: Unpack[LoaderOptions],
) -> Any:
    """A `tf.data.Dataset` of `TensorFlowBatch`es: Python is entered once a batch, and never for a record.

    The first pass is the plan's epoch from `start_step` on. A pass that was read to its end is followed by the next
    epoch, in Keras' `fit` as with `repeat()`; one that was left before, by the same epoch again. (TensorFlow reads
    ahead: leaving within the last few batches may count as the end.) The reader, and `DecodeProcesses` if they are
    given, must stay open. Shapes are static, the number of elements is known unless the first pass is shorter, and
    `tf.distribute` does not shard again. An error while loading arrives as a `tf.errors.OpError`, whose text has the
    name and message of the original.

    Args:
        plan, reader, decode, start_step, options: as for `ShardLoader`.
        feature_signature: a `tf.TensorSpec` for each feature; default: what the features of one step are, which is
            read for that. To be given where shapes differ from step to step, with None in the places that differ.

    Raises:
        PlanError: an argument is out of range, or the plan is for other data.
        ShardingError: the step that is read to see the features could not be; and whatever `decode` raises.
    """
    loader = functools.partial(ShardLoader, reader=reader, decode=decode, **options)
    loader(plan, start_step=start_step).close()  # refuses bad arguments before TensorFlow's pipeline would
    if feature_signature is None:
        with loader(plan, start_step=min(start_step, plan.steps - 1), processes=0) as first_batches:
            features = next(first_batches).features
        kinds = {name: tf.string if a.dtype.kind in "OSU" else tf.as_dtype(a.dtype) for name, a in features.items()}
        feature_signature = {name: tf.TensorSpec(np.shape(array), kinds[name]) for name, array in features.items()}
    number, weight = tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.float32)
    rank, size = options["rank"], options["size"]
    end = (rank + options.get("slices", 1)) * plan.global_batch // size
    rows = [end - rank * plan.global_batch // size]
    ids, weights = tf.TensorSpec(rows, tf.int64), tf.TensorSpec(rows, tf.float32)
    signature = TensorFlowBatch(number, ids, weights, feature_signature, global_weight=weight)
    dataset = tf.data.Dataset.from_generator(_Passes(plan, start_step, loader), output_signature=signature)
    if start_step == 0:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(plan.steps))
    pipeline = tf.data.Options()
    pipeline.deterministic = True
    pipeline.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.prefetch(1).with_options(pipeline)


class _Passes:
    """Called for each pass over the data set."""

    def __init__(self, plan: ShardPlan, start_step: int, make: Callable[..., ShardLoader]) -> None:
        self._plan, self._start_step, self._make = plan, start_step, make

    def __call__(self) -> Iterator[TensorFlowBatch]:
        plan, first = self._plan, self._start_step
        with self._make(plan, start_step=first) as loader:
            if first == plan.steps:
                self._end(plan)
            for batch in loader:
                # Before the last batch is handed over: Keras asks for no more than it knows that there are.
                if batch.step == plan.steps - 1:
                    self._end(plan)
                yield TensorFlowBatch(*batch[:5])

    def _end(self, plan: ShardPlan) -> None:
        if self._plan == plan:  # another pass over the same epoch may have come to its end before
            self._plan, self._start_step = dataclasses.replace(plan, epoch=plan.epoch + 1), 0
