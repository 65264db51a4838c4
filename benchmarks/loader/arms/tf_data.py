"""tf.data: TFRecordDataset, which checks every CRC."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import tensorflow as tf

from benchmarks.loader.arms.interface import Batches, Order
from benchmarks.loader.datasets import DataSet


class TfDataArm:
    """One private thread; a shuffle buffer. States are `tf.train.Checkpoint`s of the iterator."""

    format = "tfrecord"
    resumes = "restore"

    def versions(self) -> dict[str, str]:
        return {"tensorflow": tf.__version__}

    def prepare(self, folder: Path, data: DataSet) -> None:
        raise NotImplementedError("data_sharding writes the TFRecord files")

    def open(self, folder: Path, data: DataSet, order: Order) -> Any:
        dataset = tf.data.TFRecordDataset(sorted(map(str, folder.glob("*.tfrecord"))))
        if order == "shuffled":
            dataset = dataset.shuffle(data.shuffle_buffer, seed=17)
        options = tf.data.Options()
        options.threading.private_threadpool_size = 1
        options.threading.max_intra_op_parallelism = 1
        options.deterministic = True
        return dataset.batch(data.batch).with_options(options)

    def batches(self, opened: Any) -> Batches:
        batches: Batches = opened.as_numpy_iterator()
        return batches

    def state_at(self, opened: Any, step: int) -> Any:
        iterator = iter(opened)
        for _ in range(step):
            next(iterator)
        folder = tempfile.TemporaryDirectory(prefix="tf_data_state_")
        path = tf.train.Checkpoint(iterator=iterator).write(str(Path(folder.name) / "state"))
        return folder, path

    def resume(self, opened: Any, state: Any) -> Batches:
        iterator = iter(opened)
        _, path = state
        tf.train.Checkpoint(iterator=iterator).read(path).assert_consumed()
        return (batch.numpy() for batch in iterator)

    def close(self, opened: Any) -> None:
        del opened
