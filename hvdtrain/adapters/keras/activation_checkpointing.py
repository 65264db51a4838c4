"""Activation checkpointing in Keras: segments of a model keep their inputs only, and compute the rest again in backward.

Keras' own way (keras.RematScope, tf.recompute_grad) repeats single layers as they are: BatchNormalization would move its
statistics twice, and dropout would drop other values in the repetition than in the forward pass. Here a segment of the
model's graph is a pure function of its input, its weights and its state (keras.StatelessScope): the repetition gets the
state from before the forward pass, and the state that it leaves is forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, final

import keras
import tensorflow as tf

from hvdtrain.adapters.keras.graph_segments import Cut, best_cuts, possible_cuts
from hvdtrain.adapters.repetition import ForwardMemory
from hvdtrain.errors import UsageError


def checkpoint_activations(model: Any) -> int:
    """Let the model's graph be computed in segments, all but the last of them again in the backward pass; returns their
    number.

    The model must be functional or Sequential. It is cut where one tensor only leads from one part to the next, as
    between the blocks of a ResNet or a transformer; where, is chosen by the sizes of the layers' outputs. Weights, their
    paths and what is saved stay. Outside of training nothing changes.

    Raises:
        UsageError: the model is no graph of layers, cannot be cut, or holds layers that a repetition would not suit.
    """
    graph = getattr(model, "_functional", None) if isinstance(model, keras.Sequential) else model
    if not isinstance(graph, keras.Model) or not graph._is_functional_model:
        raise _cannot(model, "It is a class of its own, whose call() is not known as a graph of layers.")
    for layer in model._flatten_layers():
        _require_repeatable(model, layer)
    plan = best_cuts(possible_cuts(graph))
    if len(plan) < 2:
        raise _cannot(model, "At no place does a single tensor lead from one part of it to the next.")
    model.call = partial(_call, model.call, _segments(graph, plan))
    return len(plan) - 1
