"""Passes that are added up go back to a copy, and on as another rank has counted."""

from __future__ import annotations

import gc
from typing import Any

import tensorflow as tf

from hvdtrain.tensorflow.summed_passes import SummedPasses, all_passes


class Rank:
    """Passes of one variable, two for an update. Attributes: `applied`: what each update has got."""

    def __init__(self) -> None:
        self.passes, self.applied = SummedPasses(2, average=False), list[float]()
        self._variable = tf.Variable(0.0)

    def add(self, gradient: float) -> None:
        self.passes.add([tf.constant(gradient)], [self._variable], self._apply)

    def _apply(self, totals: list[Any]) -> None:
        self.applied.append(float(totals[0]))


def test_a_pass_of_a_copy_is_used_again() -> None:
    rank = Rank()
    rank.add(1.0)
    kept = rank.passes.kept()
    rank.add(2.0)
    rank.add(4.0)
    rank.passes.go_back(kept)
    rank.add(8.0)
    assert rank.applied == [3.0, 9.0]


def test_what_came_after_a_copy_is_forgotten() -> None:
    rank = Rank()
    kept = rank.passes.kept()
    rank.add(1.0)
    rank.passes.go_back(kept)
    rank.add(2.0)
    assert rank.applied == []
    rank.add(4.0)
    assert rank.applied == [6.0]


def test_ranks_count_alike() -> None:
    first, joined, ahead, same = Rank(), Rank(), Rank(), Rank()
    for rank in (first, ahead, ahead, same):
        rank.add(1.0)
    for rank in (joined, ahead, same):
        rank.passes.go_on(first.passes.counts)
    for rank in (first, joined, ahead, same):
        rank.add(2.0)
    assert first.applied == same.applied == [3.0]
    assert joined.applied == [2.0]
    assert ahead.applied == [2.0, 2.0]


def test_counts_are_of_groups_of_the_same_shapes() -> None:
    first, joined = SummedPasses(2, average=False), SummedPasses(2, average=False)
    small, large = tf.Variable(0.0), tf.Variable([0.0, 0.0])
    applied: list[float] = []
    first.add([tf.constant(1.0)], [small], lambda _: None)
    first.add([tf.ones(2)], [large], lambda _: None)
    first.add([tf.ones(2)], [large], lambda _: None)
    joined.go_on(first.counts)
    joined.add([tf.ones(2)], [large], lambda _: applied.append(2.0))
    joined.add([tf.constant(1.0)], [small], lambda _: applied.append(1.0))
    assert applied == [1.0]


def test_numbers_do_not_depend_on_what_is_gone() -> None:
    first, gone, last = (SummedPasses(2, average=False) for _ in range(3))
    distance = last.number - first.number
    del gone
    gc.collect()
    known = all_passes()
    assert known[first.number] is first
    assert known[first.number + distance] is last
    assert distance == 2
