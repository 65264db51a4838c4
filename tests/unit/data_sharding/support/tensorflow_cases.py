"""Tests of the tf.data adapter. Run by adapters/test_tensorflow.py in a process of its own, since TensorFlow's threads
and its memory stay: forks that other tests make would not survive them.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.range_server import serving

sys.path.insert(0, str(Path(__file__).parent))

import importable_decoders as decoders  # noqa: E402

import data_sharding as ds  # noqa: E402
from data_sharding.adapters.tensorflow import TensorFlowBatch, as_tf_dataset  # noqa: E402
from data_sharding.loading.decode_processes import DecodeProcesses  # noqa: E402

WAIT_S = 60.0


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("data_sharding-"):
            thread.join(WAIT_S)
            assert not thread.is_alive(), thread


@pytest.fixture
def reader(catalog: ds.Catalog) -> Iterator[ds.RecordReader]:
    with ds.RecordReader(catalog) as reader:
        yield reader


def plan_for(catalog: ds.Catalog, **changes: Any) -> ds.ShardPlan:
    return ds.ShardPlan.for_catalog(catalog, **{"global_batch": 8, "seed": 5, "epoch": 1, **changes})


def loaded(plan: ds.ShardPlan, reader: ds.RecordReader, **arguments: Any) -> list[ds.LoadedBatch]:
    arguments = {"rank": 0, "size": 1, "augment": True, **arguments}
    with ds.ShardLoader(plan, reader, decoders.contents, **arguments) as loader:
        return list(loader)


def assert_same(ours: list[TensorFlowBatch], theirs: list[ds.LoadedBatch]) -> None:
    assert [int(batch.step) for batch in ours] == [batch.step for batch in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        assert float(mine.global_weight) == other.global_weight
        assert mine.weights.numpy().tolist() == other.weights.tolist()
        assert mine.ids.numpy().tolist() == other.ids.tolist()
        assert mine.features.keys() == other.features.keys()
        for name, tensor in mine.features.items():
            assert np.array_equal(tensor.numpy(), other.features[name])


@pytest.mark.parametrize(
    ("rank", "size", "start", "options"),
    [
        (0, 1, 0, {}),
        (2, 3, 3, {"threads": 3, "prefetch": 4}),
        (1, 2, 7, {"processes": 2}),
        (0, 8, 8, {}),
    ],
)
def test_equals_the_loader_from_any_start(
    reader: ds.RecordReader, rank: int, size: int, start: int, options: dict[str, int]
) -> None:
    plan = plan_for(reader.catalog)
    where: dict[str, Any] = {"rank": rank, "size": size, "start_step": start}
    data = as_tf_dataset(plan, reader, decoders.contents, augment=True, **where, **options)
    assert int(data.cardinality()) == (plan.steps if start == 0 else tf.data.UNKNOWN_CARDINALITY)
    assert_same(list(data), loaded(plan, reader, **where))
    assert_same(list(data), loaded(dataclasses.replace(plan, epoch=2), reader, **{**where, "start_step": 0}))


@pytest.mark.parametrize("start", [0, 5])
def test_repeat_is_one_epoch_after_the_other(reader: ds.RecordReader, start: int) -> None:
    plan = plan_for(reader.catalog)
    data = as_tf_dataset(plan, reader, decoders.contents, rank=1, size=2, augment=True, start_step=start)
    where: dict[str, Any] = {"rank": 1, "size": 2}
    expected = loaded(plan, reader, **where, start_step=start)
    for epoch in (2, 3):
        expected += loaded(dataclasses.replace(plan, epoch=epoch), reader, **where)
    assert_same(list(data.repeat(3)), expected)


def test_a_pass_that_is_left_is_the_same_epoch_again(reader: ds.RecordReader) -> None:
    plan = plan_for(reader.catalog)
    data = as_tf_dataset(plan, reader, decoders.contents, rank=0, size=1, augment=True)
    for _ in range(2):  # as Keras does to see the shapes
        assert_same([next(iter(data))], loaded(plan, reader)[:1])
    assert_same(list(data), loaded(plan, reader))


def test_keras_trains_on_one_epoch_after_the_other(reader: ds.RecordReader) -> None:
    plan, seen = plan_for(reader.catalog), []
    data = as_tf_dataset(plan, reader, decoders.contents, rank=0, size=1)

    class Sees(keras.Layer):
        def call(self, ids: Any) -> Any:
            tf.py_function(lambda eager: seen.extend(eager.numpy()[:, 0].tolist()), [ids], [])
            return tf.cast(ids, tf.float32)

    model = keras.Sequential([Sees(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    fed = data.map(lambda batch: (batch.ids[:, None], tf.zeros([8, 1]), batch.weights))
    model.fit(fed, epochs=2, shuffle=False, verbose=0)
    epochs = [ds.ShardPlan.for_catalog(reader.catalog, global_batch=8, seed=5, epoch=epoch) for epoch in (1, 2)]
    expected = [plan.batch(step).ids.tolist() for plan in epochs for step in range(plan.steps)]
    trained = [seen[first : first + 8] for first in range(0, len(seen), 8)]
    assert trained[-16:] == expected  # what comes before are the looks at the shapes


def test_a_block_of_remote_data_is_asked_for_once(tmp_path: Path) -> None:
    ds.write_shards(tmp_path, "a", [b"%0300d" % number for number in range(2_000)], 1)
    with serving(tmp_path) as store:
        remote = ds.Catalog.index([f"{store.url}/{path.name}" for path in tmp_path.glob("*.tfrecord")])
        store.reset()
        with ds.RecordReader(remote) as reader:
            plan = plan_for(remote, shuffle="block", global_batch=61)
            list(as_tf_dataset(plan, reader, decoders.numbers, rank=0, size=1))
        assert store.bytes <= 1.1 * 300 * 2_000


def test_shapes_and_types_are_static(reader: ds.RecordReader) -> None:
    data = as_tf_dataset(plan_for(reader.catalog), reader, decoders.contents, rank=0, size=2)
    spec = data.element_spec
    assert isinstance(spec, TensorFlowBatch)
    assert spec.ids == tf.TensorSpec([4], tf.int64)
    assert spec.weights == tf.TensorSpec([4], tf.float32)
    assert spec.features["start"] == tf.TensorSpec([4, 8], tf.uint8)
    assert spec.features["draws"] == tf.TensorSpec([4, 2], tf.float32)
    assert spec.features["payload"] == tf.TensorSpec([4], tf.string)
    assert data.options().deterministic
    assert data.options().experimental_distribute.auto_shard_policy == tf.data.experimental.AutoShardPolicy.OFF


def test_slices_of_several_ranks_are_one_batch(reader: ds.RecordReader) -> None:
    plan = plan_for(reader.catalog)
    options = {"rank": 1, "size": 4, "augment": True, "slices": 2}
    ours = list(as_tf_dataset(plan, reader, decoders.contents, **options))  # type: ignore[arg-type]
    assert_same(ours, loaded(plan, reader, **options))


def test_python_is_entered_once_a_batch(reader: ds.RecordReader) -> None:
    calls: list[int] = []

    def counting(records: ds.RecordBatch) -> dict[str, Any]:
        calls.append(len(records))
        return decoders.numbers(records)

    plan = plan_for(reader.catalog)
    signature = {
        "length": tf.TensorSpec([8], tf.int64),
        "start": tf.TensorSpec([8, 8], tf.uint8),
        "every_other": tf.TensorSpec([8, 4], tf.uint8),
        "draws": tf.TensorSpec([8, 2], tf.float32),
    }
    data = as_tf_dataset(plan, reader, counting, rank=0, size=1, feature_signature=signature)
    assert calls == []
    assert len(list(data)) == plan.steps
    assert calls == [8] * plan.steps


def test_shapes_that_differ_need_a_signature(reader: ds.RecordReader) -> None:
    plan = plan_for(reader.catalog)
    signature = {"x": tf.TensorSpec([8, None], tf.int64)}
    data = as_tf_dataset(plan, reader, decoders.ragged, rank=0, size=1, feature_signature=signature)
    widths = [batch.features["x"].shape[1] for batch in data]
    assert len(set(widths)) > 1
    with pytest.raises(tf.errors.InvalidArgumentError, match="shape"):
        list(as_tf_dataset(plan, reader, decoders.ragged, rank=0, size=1))


def test_keras_takes_the_mask_as_sample_weight(reader: ds.RecordReader) -> None:
    import keras

    plan = plan_for(reader.catalog)
    data = as_tf_dataset(plan, reader, decoders.contents, rank=0, size=1).map(
        lambda batch: (tf.cast(batch.features["start"], tf.float32), batch.features["length"], batch.weights)
    )
    always_zero = keras.Sequential([keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    always_zero.compile(optimizer=keras.optimizers.SGD(0.0), loss="mse", weighted_metrics=["mae"])
    history = always_zero.fit(data, epochs=2, shuffle=False, verbose=0).history
    assert history["mae"] == pytest.approx([reader.catalog.lengths.mean()] * 2)


def test_epochs_share_processes(reader: ds.RecordReader) -> None:
    with DecodeProcesses(reader, decoders.contents, 1) as helpers:
        for epoch in range(2):
            plan = plan_for(reader.catalog, epoch=epoch)
            data = as_tf_dataset(plan, reader, helpers, rank=0, size=1, augment=True)
            assert_same(list(data), loaded(plan, reader))


@pytest.mark.parametrize("processes", [0, 1])
def test_leaving_early_ends_the_loader(reader: ds.RecordReader, processes: int) -> None:
    data = as_tf_dataset(plan_for(reader.catalog), reader, decoders.slowly, rank=0, size=1, processes=processes)
    for _ in data:
        break
    iterator = iter(data)
    next(iterator)
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("data_sharding-")]
    assert threads != []
    del iterator
    gc.collect()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()


def test_an_error_is_named(data_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(data_folder, tmp_path / "copy"))
    path = sorted(folder.iterdir())[1]
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    catalog = ds.Catalog.index(folder)
    plan = plan_for(catalog, shuffle="none")
    with ds.RecordReader(catalog) as reader:
        data = as_tf_dataset(plan, reader, decoders.contents, rank=0, size=1)
        steps = []
        with pytest.raises(
            tf.errors.OpError, match=r"CorruptRecordError: Record \d+, in .*00001-of-00004.*is damaged"
        ) as caught:
            steps.extend(int(batch.step) for batch in data)
        assert "while loading step 3 of epoch 1 for rank 0 of 1" in str(caught.value)
        assert steps == [0, 1, 2]
        rest = as_tf_dataset(plan, reader, decoders.contents, rank=0, size=1, start_step=4)
        assert len(list(rest)) == 4


def test_stop_iteration_is_an_error_and_not_the_end(reader: ds.RecordReader) -> None:
    plan = plan_for(reader.catalog)
    last = plan.batch(plan.steps - 1).ids.tolist()

    def stopping(records: ds.RecordBatch) -> dict[str, Any]:
        return next(iter([])) if records.ids.tolist() == last else decoders.numbers(records)

    data = as_tf_dataset(plan, reader, stopping, rank=0, size=1)
    with pytest.raises(tf.errors.OpError, match="raised StopIteration"):
        list(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"start_step": 9}, "Position"), ({"size": 9}, "--global-batch-size to 9"), ({"prefetch": 0}, "prefetch is 0")],
)
def test_impossible_arguments_are_refused_at_once(
    reader: ds.RecordReader, change: dict[str, int], message: str
) -> None:
    with pytest.raises(ds.PlanError, match=message):
        as_tf_dataset(plan_for(reader.catalog), reader, decoders.numbers, **{"rank": 0, "size": 1, **change})


def test_processes_are_not_confused_by_tensorflow(reader: ds.RecordReader) -> None:
    assert "tensorflow" in sys.modules
    with DecodeProcesses(reader, decoders.process, 1) as helpers:
        assert int(helpers(np.arange(1), None).features["pid"][0]) != os.getpid()
