"""The parts of a step in a graph of TensorFlow take as long as they take, and are told once."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from hvdtrain.adapters.choose_sync import choose_sync
from hvdtrain.adapters.keras.gradient_sync import SummedGradients
from hvdtrain.adapters.keras.graph_clock import GraphStepTimer, Waiting
from hvdtrain.adapters.step_timer import PARTS
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.topology import Topology

TOOK = {"forward": 0.02, "backward": 0.06, "allreduce": 0.04, "optimizer": 0.01}


def slowly(value: Any, part: str) -> Any:
    """The value, some time later."""

    def wait(given: Any) -> Any:
        time.sleep(TOOK[part])
        return given

    return tf.ensure_shape(tf.numpy_function(wait, [value], value.dtype), value.shape)


def step_of(timer: GraphStepTimer, is_last: bool = True) -> Any:
    @tf.function(autograph=False)
    def step(value: Any) -> Any:
        timer.begin([value])
        loss = slowly(value, "forward")
        timer.mark("forward", [loss])
        first = slowly(loss, "optimizer")  # the gradients of the last layers
        gradient = slowly(loss, "backward")
        timer.sending([first])
        timer.mark("backward", [gradient, None])
        (reduced, nothing) = timer.mark_before("allreduce", [slowly(gradient, "allreduce"), None])
        assert nothing is None
        weights = slowly(reduced, "optimizer")
        timer.mark("optimizer", [weights])
        timer.end(is_last)
        return weights

    return step


def test_each_part_takes_as_long_as_it_takes() -> None:
    timer = GraphStepTimer(PARTS)
    step = step_of(timer)
    begin = time.perf_counter()
    for _ in range(3):
        np.testing.assert_array_equal(step(tf.constant([3.0])), [3.0])
        timer.copied(time.perf_counter() - 0.5)
        timer.end_steps(1)
    whole = time.perf_counter() - begin
    sketches, told = timer.take_sketches(), timer.take()
    for part, seconds in TOOK.items():
        assert sketches[part].count == 3
        assert 3 * seconds <= told[part]
    assert sum(told[part] for part in TOOK) <= whole
    assert told["host_to_device"] == pytest.approx(1.5, abs=0.1)
    assert 0 <= told["allreduce_hidden"] <= told["backward"]
    assert sketches["allreduce_hidden"].count == 3
    assert timer.take_sketches() == {}
    assert set(timer.take().values()) == {0.0}


def test_micro_batches_of_a_step_are_added_up() -> None:
    timer = GraphStepTimer(["forward", "optimizer"])
    first, last = step_of(timer, is_last=False), step_of(timer)
    first(tf.constant([1.0]))
    last(tf.constant([1.0]))
    timer.end_steps(1)
    sketches, told = timer.take_sketches(), timer.take()
    assert {*sketches} == {*told} == {"forward", "optimizer"}
    assert sketches["forward"].count == 1
    assert told["forward"] >= 2 * TOOK["forward"]


def test_steps_that_nobody_asks_for_need_no_more_memory() -> None:
    timer = GraphStepTimer(PARTS, most=300)

    @tf.function(autograph=False)
    def step(count: Any) -> None:
        for _ in range(300):
            timer.begin([count])
            timer.mark("optimizer", [count])
            timer.end(is_last=True)

    for _ in range(5):
        step(tf.constant(1.0))
        timer.end_steps(300)
    assert timer.take_sketches()["optimizer"].count == 1500


def test_the_message_that_begins_first_is_that_of_the_bucket_that_is_full_first() -> None:
    """Small gradients of many layers share a bucket, which waits for the first of these layers."""
    shapes = [(600, 600), (600,), (600, 600), (3,)]
    variables = [tf.Variable(tf.zeros(shape)) for shape in shapes]
    chosen = choose_sync(TrainingOptions(), Topology(0, 2, 0, 2))
    sync = SummedGradients(variables, chosen, Waiting())
    assert sync.buckets(2**20) == (2, 1, 1)
    assert sync.first_sent() == [2]
    assert SummedGradients((), chosen, Waiting()).first_sent() == []
