"""Numbers for collectives that may be pending at the same time, so that each has a name of its own."""

from collections import Counter
from collections.abc import Hashable
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf


class NumberedCalls:
    """Numbers the calls at each place in a graph, which may run at the same time and so need names of their own.

    They are counted again for each graph: how often a step was traced may differ from rank to rank.
    """

    def __init__(self) -> None:
        self._graphs: WeakKeyDictionary[Any, Counter[Hashable]] = WeakKeyDictionary()

    def number(self, place: Hashable) -> int:
        """From 1 on in a graph, always 0 in eager mode."""
        if tf.executing_eagerly():  # one after the other
            return 0
        graph = tf.compat.v1.get_default_graph()
        while isinstance(getattr(graph, "outer_graph", None), type(graph)):
            graph = graph.outer_graph
        counter = self._graphs.setdefault(graph, Counter())
        counter[place] += 1
        return counter[place]
