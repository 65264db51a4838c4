"""TensorFlow: one rank's batches of a plan as a `tf.data.Dataset`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from data_sharding.decode_processes import DecodeProcesses
from data_sharding.decoding import Decode
from data_sharding.loader import LoadedBatch, ShardLoader
from data_sharding.plan import ShardPlan
from data_sharding.reader import RecordReader

_STRING_KINDS: Final = "OSU"
"""Kinds of numpy dtypes that become tf.string: objects, bytes, text."""


class TensorFlowBatch(NamedTuple):
    """Element of the data set, one rank's part of one step, k records: `LoadedBatch` in tensors.

    Attributes:
        step: int64 scalar, step of the epoch.
        ids: int64[k].
        weights: float32[k], 0 for masked slots and for damaged records: `sample_weight` for Keras.
        features: what the decode function made, with k rows each.
        global_weight: float32 scalar, real records of the step over all ranks, as planned.
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
    rank: int,
    size: int,
    augment: bool = False,
    start_step: int = 0,
    prefetch: int = 2,
    threads: int = 1,
    processes: int = 0,
    timeout_s: float = 300.0,
    feature_signature: dict[str, Any] | None = None,
) -> Any:
    """A `tf.data.Dataset` of `TensorFlowBatch`es: Python is entered once a batch, and never for a record.

    Each pass over the data set is the same epoch, read by a `ShardLoader` of its own, which ends with the pass. The
    reader, and `DecodeProcesses` if they are given, are the caller's and must stay open. Shapes are static, the number
    of elements is known, and `tf.distribute` is told not to shard again. An error while loading arrives as a
    `tf.errors.OpError`, as tf.data reports it, whose text has the name and message of the original.

    Args:
        plan, reader, decode, rank, size, augment, start_step, threads, processes, timeout_s: as for `ShardLoader`.
        prefetch: batches that may be ready ahead: so many arrays, and one more that is a tensor already.
        feature_signature: a `tf.TensorSpec` for each feature; left out: what the features of one step are, which is
            read for that. To be given where shapes differ from step to step, with None in the places that differ.

    Raises:
        PlanError: an argument is out of range, or the plan is for other data.
        ShardingError: the step that is read to see the features could not be; and whatever `decode` raises.
    """

    def loader(first: int, processes: int) -> ShardLoader:
        return ShardLoader(
            plan,
            reader,
            decode,
            rank=rank,
            size=size,
            augment=augment,
            start_step=first,
            prefetch=prefetch,
            threads=threads,
            processes=processes,
            timeout_s=timeout_s,
        )

    loader(start_step, processes).close()  # refuses bad arguments here, and not in the middle of TensorFlow's pipeline
    if feature_signature is None:
        with loader(min(start_step, plan.steps - 1), 0) as first_batches:
            feature_signature = {name: _spec(array) for name, array in next(first_batches).features.items()}
    rows = len(plan.shard(rank, size, 0).ids)
    dataset = tf.data.Dataset.from_generator(
        lambda: _batches(lambda: loader(start_step, processes)), output_signature=_signature(rows, feature_signature)
    )
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(plan.steps - start_step))
    options = tf.data.Options()
    options.deterministic = True
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.prefetch(1).with_options(options)


def _batches(make: Callable[[], ShardLoader]) -> Iterator[TensorFlowBatch]:
    with make() as loader:
        for batch in loader:
            yield _element(batch)


def _element(batch: LoadedBatch) -> TensorFlowBatch:
    return TensorFlowBatch(batch.step, batch.ids, batch.weights, batch.features, batch.global_weight)


def _signature(rows: int, features: dict[str, Any]) -> TensorFlowBatch:
    scalar, per_record = tf.TensorShape([]), tf.TensorShape([rows])
    return TensorFlowBatch(
        step=tf.TensorSpec(scalar, tf.int64),
        ids=tf.TensorSpec(per_record, tf.int64),
        weights=tf.TensorSpec(per_record, tf.float32),
        features=features,
        global_weight=tf.TensorSpec(scalar, tf.float32),
    )


def _spec(array: NDArray[Any]) -> Any:
    dtype = tf.string if array.dtype.kind in _STRING_KINDS else tf.as_dtype(array.dtype)
    return tf.TensorSpec(np.shape(array), dtype)
