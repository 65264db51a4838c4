"""The limit on waits for other ranks: it holds for waits only, however long this rank itself computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.commands import Ended, Forker

BEGIN = """
import sys, time
import numpy as np
from hvdtrain.comm import peer_failure
peer_failure._AT_LEAST_MORE = 0.0
peer_failure.limit_waits(0, 0.3)  # so that 0.9 s are the limit

def train(adapter):
    from data_sharding import LoadedBatch
    features = {"x": np.ones((4, 5), np.float32), "label": np.zeros(4, np.int64)}
    batch = LoadedBatch(0, np.arange(4), np.ones(4, np.float32), features, 4.0)
    for step in range(2):
        adapter.train_step(batch, step, 0.1)
    print(adapter.read_sums().values["loss"])
"""
WAIT = BEGIN + "with peer_failure.waits_for_peers(): time.sleep(60)\n"
TORCH = (
    BEGIN
    + """
from support.torch_training import LR, TorchRows
from hvdtrain.adapters.torch.adapter import TorchAdapter
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.topology import Topology

class Slow(TorchRows):
    def measure(self, model, batch):
        time.sleep(2)
        return super().measure(model, batch)

train(TorchAdapter(Slow(), Topology.single(), 0, LR, TrainingOptions()))
"""
)
KERAS = (
    BEGIN
    + """
import keras, tensorflow as tf
from support.numpy_training import NumpyTask
from hvdtrain.adapters.keras.adapter import KerasAdapter
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.topology import Topology

class Slow(NumpyTask):
    framework = "tensorflow"
    def build_model(self):
        return keras.Sequential([keras.layers.Input((5,)), keras.layers.Dense(3)])
    def build_optimizer(self, model, lr):
        return keras.optimizers.SGD(lr)
    def measure(self, model, batch):
        time.sleep(2)  # as tracing and compiling may take
        logits = model(batch["x"])
        pause = tf.numpy_function(lambda x: (time.sleep(2), x)[1], [logits], tf.float32)
        with tf.control_dependencies([pause]):
            return {"loss": tf.nn.sparse_softmax_cross_entropy_with_logits(batch["label"], logits)}

train(KerasAdapter(Slow(), Topology.single(), 0, 0.1, TrainingOptions()))
"""
)
KERAS_WAIT = (
    BEGIN
    + """
import tensorflow as tf
from hvdtrain.adapters.keras.graph_clock import Waiting, current_wait
waiting = Waiting()

@tf.function(autograph=False)
def step():
    def collective():  # hangs, as an allreduce does whose peer is frozen
        return [tf.numpy_function(lambda x: (time.sleep(60), x)[1], [tf.ones(3)], tf.float32)]
    return waiting.over([tf.ones(3)], collective)

with peer_failure.waits_for_peers(current_wait):
    step()
"""
)
FIRST_ASKED_BY_MANY = """
import threading
from hvdtrain.adapters.keras import graph_clock

together, found = threading.Barrier(8), []
def ask():
    together.wait()
    found.append(graph_clock._waits())

threads = [threading.Thread(target=ask) for _ in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
print(len({id(begun) for begun, _ in found}))
"""
HELD_BACK = """
import tensorflow as tf
from hvdtrain.adapters.keras.graph_clock import Waiting
waiting = Waiting()

@tf.function(autograph=False)
def step(first, last):
    return waiting.over([first, last], lambda: [tf.identity(first, name="sent"), tf.identity(last)])

graph = step.get_concrete_function(*[tf.TensorSpec([3], tf.float32)] * 2).graph
before, found = [graph.get_operation_by_name("sent")], set()
while before:
    operation = before.pop()
    found.add(operation.name)
    before += [one for one in [*(i.op for i in operation.inputs), *operation.control_inputs] if one.name not in found]
print("first" in found, "last" in found)
"""


@pytest.fixture(params=["torch", "keras"])
def finished(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Ended]:
    """Runs one program or the other."""
    forker: Forker = request.getfixturevalue("forker" if request.param == "torch" else "keras_forker")
    return lambda **programs: forker.run_python(["-c", programs[request.param]], tmp_path)


def test_a_wait_has_an_end(finished: Callable[..., Ended]) -> None:
    done = finished(torch=WAIT, keras=KERAS_WAIT)
    assert done.code == 1, done.stderr
    assert "A collective has waited for other ranks for 0.9 s." in done.stderr


def test_the_thread_that_looks_sees_the_waits_of_the_step(keras_forker: Forker, tmp_path: Path) -> None:
    """Both may be the first to ask for the counts, and at the same time."""
    done = keras_forker.run_python(["-c", FIRST_ASKED_BY_MANY], tmp_path)
    assert (done.code, done.stdout.strip()) == (0, "1"), done.stderr


def test_what_is_ready_is_sent_before_the_rest_is(keras_forker: Forker, tmp_path: Path) -> None:
    """A bucket of gradients must not wait for those of the layers that come last in the backward pass."""
    done = keras_forker.run_python(["-c", HELD_BACK], tmp_path)
    assert (done.code, done.stdout.strip()) == (0, "True False"), done.stderr


def test_what_this_rank_itself_computes_is_no_wait(finished: Callable[..., Ended]) -> None:
    """Forward, backward, tracing and compiling may each take longer than others may be waited for."""
    done = finished(torch=TORCH, keras=KERAS)
    assert done.code == 0, done.stderr
    assert float(done.stdout) > 0
