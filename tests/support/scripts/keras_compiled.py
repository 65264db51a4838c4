"""Checks of compiled steps, each a function; the name of one is the argument."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from hvdtrain.adapters.keras.compiled import CompiledStep, StepNumbers, keep_order_of_sums


def each_layout_is_traced_once_and_has_its_own_result() -> None:
    traced: list[tuple[int, ...]] = []
    total = tf.Variable(0.0)

    def add(features: dict[str, tf.Tensor], factor: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        traced.append(tuple(features["x"].shape))
        total.assign_add(tf.reduce_sum(features["x"]) * factor)
        return tf.constant(True), tf.reduce_max(features["x"])

    step = CompiledStep(add)
    for rows in (2, 3, 2, 3, 2):
        done, largest = step((rows,), {"x": tf.range(rows, dtype=tf.float32)}, tf.constant(2.0))
        assert bool(done)
        assert float(largest) == rows - 1
    assert sorted(traced) == [(2,), (3,)]
    assert float(total.numpy()) == 2 * (1 + 3 + 1 + 3 + 1)


def in_turn(step: Callable[[tf.Tensor], tf.Tensor]) -> CompiledStep:
    """As a step that is made for each of several rows."""
    return CompiledStep(lambda rows: [tf.map_fn(step, rows, parallel_iterations=1)], any_length=True)


def one_graph_serves_any_number_of_rows_in_their_order() -> None:
    traced: list[object] = []
    last = tf.Variable(0.0)

    def add(row: tf.Tensor) -> tf.Tensor:
        traced.append(row.shape)
        return last.assign(10 * last + row)

    step = in_turn(add)
    for direct in (True, False):  # as on a CPU, and as on a GPU
        step._is_direct = direct
        for rows in (3, 1, 2):
            last.assign(0.0)
            (found,) = step((), tf.range(1, rows + 1, dtype=tf.float32))
            assert found.numpy().tolist() == [1, 12, 123][:rows]
    assert len(traced) == 1


def an_error_says_where_its_operation_was_made() -> None:
    def refuse(x: tf.Tensor) -> tf.Tensor:
        tf.debugging.assert_less(x, 0.0, message="words of the task")
        return x

    def refuse_nan(x: tf.Tensor) -> tf.Tensor:
        return tf.debugging.check_numerics(x, "words of the task")

    for check, value in ((refuse, 1.0), (refuse_nan, np.nan)):
        once = CompiledStep(lambda x, check=check: [check(x)])
        for step, rows in ((once, tf.constant(value)), (in_turn(check), tf.constant([value]))):
            with pytest.raises(tf.errors.InvalidArgumentError, match="words of the task") as raised:
                step((), rows)
            notes = raised.value.__notes__
            assert any(f'{__file__}", line' in note and f"in {check.__name__}" in note for note in notes), notes


def operations_that_do_not_need_each_other_wait_at_the_same_time() -> None:
    """As two collectives do: one after the other, each rank could begin with another one."""
    both = threading.Barrier(2, timeout=60)

    def wait(value: tf.Tensor) -> tf.Tensor:
        def work(number: np.float32) -> np.float32:
            both.wait()
            return number

        return tf.numpy_function(work, [value], tf.float32, stateful=False)

    (total,) = CompiledStep(lambda one, two: [wait(one) + wait(two)])((), tf.constant(1.0), tf.constant(2.0))
    assert float(total) == 3
    (totals,) = in_turn(lambda row: wait(row) + wait(row + 1))((), tf.range(3, dtype=tf.float32))
    assert totals.numpy().tolist() == [1, 3, 5]


def numbers_of_a_step_come_back_exactly() -> None:
    seeds = [2**63 - 1, 0, 0x1234_5678_9ABC_DEF0]
    found = StepNumbers.unpacked(StepNumbers(2**40 + 1, 0.1, 2.0**-20, 123_457.0, seeds).packed())
    assert int(found.step) == 2**40 + 1
    assert [float(n) for n in found[1:4]] == [float(np.float32(0.1)), 2.0**-20, 123_457.0]
    assert [(int(high) << 32) + int(low) for high, low in found.seeds.numpy()] == seeds


def sums_of_large_tensors_add_their_terms_in_their_order() -> None:
    """A sum of four terms whose graph needs so much memory that TensorFlow would add each one when it is there."""

    def total(x: tf.Tensor) -> list[tf.Tensor]:
        return [tf.add_n([tf.sin(x), tf.cos(x), tf.tan(x)]) + tf.sinh(x)]

    def sums_in(run: Callable[[tf.Tensor], object]) -> list[str]:
        with context.collect_graphs() as graphs:
            run(tf.ones([4096, 4096]))
        kinds = ("AddN", "AddV2", "AssignAdd")
        return sorted(node.op for graph in graphs for node in graph.node if node.op in kinds)

    def in_any_order() -> Callable[[tf.Tensor], object]:
        return tf.function(total, autograph=False)  # type: ignore[no-any-return]

    assert sums_in(in_any_order()) == ["AssignAdd"] * 4
    assert sums_in(lambda x: CompiledStep(total)(0, x)) == ["AddN", "AddV2"]
    keep_order_of_sums()
    assert sums_in(in_any_order()) == ["AddN", "AddV2"]


if __name__ == "__main__":
    tf.config.threading.set_inter_op_parallelism_threads(2)
    globals()[sys.argv[1]]()
