"""Activation checkpointing in Keras: segments of a model keep their inputs only, and are computed again in backward.

Keras' own way (keras.RematScope, tf.recompute_grad) repeats single layers as they are: BatchNormalization would move
its statistics twice, and dropout would drop other values in the repetition than in the forward pass. Here a segment of
the model's graph is a pure function of its input, its weights and its state (keras.StatelessScope): the repetition gets
the state from before the forward pass, and its new state is discarded.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

import keras
import tensorflow as tf
from keras.src.models import Functional

from hvdtrain.adapters.forward_pass import ForwardMemory
from hvdtrain.errors import UsageError

_BOUNDS: Final = 32  # sizes of the largest segment that are tried
_ITEM_BYTES: Final = {"float64": 8, "int64": 8, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1, "bool": 1}


def checkpoint_activations(model: Any) -> int:
    """Let the model's graph be computed in segments, all but the last of them again in the backward pass; returns their
    number.

    The model must be functional or Sequential. It can be cut where one tensor only leads from one part to the next, as
    between the blocks of a ResNet or a transformer; sizes of the layers' outputs decide where it is. Weights, their
    paths and what is saved stay. Outside of training nothing changes.

    Raises:
        UsageError: the model is not a graph of layers, cannot be cut, or holds layers that a repetition would not suit.
    """
    graph = getattr(model, "_functional", None) if isinstance(model, keras.Sequential) else model
    if not isinstance(graph, Functional) or type(graph).call is not Functional.call:
        raise _cannot(model, "It is a class of its own, whose call() is not known as a graph of layers.")
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Masking) or getattr(layer, "mask_zero", False):
            masks = f"The layer {layer.name!r} masks steps, and masks do not go from one segment to the next."
            raise _cannot(model, masks)
    plan = best_cuts(possible_cuts(graph))
    if len(plan) < 2:
        raise _cannot(model, "At no place does a single tensor lead from one part of it to the next.")
    model.call = partial(_call, model.call, _segments(model, graph, plan))
    return len(plan) - 1


def _segments(model: Any, graph: Any, plan: Sequence["Cut"]) -> list["_Segment"]:
    ends = [graph._inputs_struct, *(cut.tensor for cut in plan[:-1]), graph._outputs_struct]
    nodes = [0, *(cut.nodes for cut in plan)]
    # What one operation keeps besides its input is its output, which the next one keeps anyway; and what the last
    # segment keeps is needed as soon as it has been computed.
    worth = [after - before > 1 for before, after in pairwise(nodes)][:-1] + [False]
    return [
        _Segment(model, keras.Model(start, end, name=f"{graph.name}_segment_{place}"), repeated)
        for place, ((start, end), repeated) in enumerate(zip(pairwise(ends), worth, strict=True))
    ]


def _call(
    whole: Any, segments: Sequence["_Segment"], inputs: Any, training: bool = False, mask: Any = None, **options: Any
) -> Any:
    if not training or mask is not None or options:
        return whole(inputs, training=training, mask=mask, **options)
    for segment in segments:
        inputs = segment(inputs)
    return inputs


class _Segment:
    def __init__(self, model: Any, part: keras.Model, repeated: bool) -> None:
        self._model, self._part = model, part
        self._repeated = repeated

    def __call__(self, inputs: Any) -> Any:
        if not self._repeated:
            return self._part(inputs, training=True)
        weights, state = self._part.trainable_variables, self._part.non_trainable_variables
        before = [tf.convert_to_tensor(v.value) for v in state]
        changed: list[Any] = []

        def compute(inputs: Any, values: Sequence[Any]) -> _Computed:
            mapping = [*zip(weights, values, strict=True), *zip(state, before, strict=True)]
            with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
                outputs = self._part(inputs, training=True)
            after = [scope.get_current_value(v) for v in state]
            changed[:] = [place for place, value in enumerate(after) if value is not before[place]]
            return _Computed(outputs, list(scope.losses), [after[place] for place in changed])

        computed = _computed_twice(compute)(inputs, *(tf.convert_to_tensor(v.value) for v in weights))
        for place, value in zip(changed, computed.state, strict=True):
            state[place].assign(value)
        for loss in computed.losses:
            keras.layers.Layer.add_loss(self._model, loss)  # a model's own method is not implemented
        return computed.outputs


class _Computed(NamedTuple):
    """The results of a segment: a tensor, losses that its layers added, and its variables' new values."""

    outputs: Any
    losses: list[Any]
    state: list[Any]


def _computed_twice(compute: Any) -> Any:
    """The function (inputs, *weights) → _Computed that keeps nothing but its arguments for its gradient."""
    memory = ForwardMemory()

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def segment(inputs: Any, *weights: Any) -> Any:
        with memory.recording():
            computed = compute(inputs, weights)

        def backward(*gradients: Any) -> Any:
            # TensorFlow would else repeat it at once, or take the forward pass for its repetition.
            with tf.control_dependencies(gradients[:1]):
                again = [tf.identity(tensor) for tensor in (inputs, *weights)]
                to = [tensor for tensor in again if tensor.dtype.is_floating]
                with tf.GradientTape() as tape, memory.repeating():
                    tape.watch(to)
                    outputs, losses, _ = compute(again[0], again[1:])
            of = [outputs, *losses]
            computed_gradients = iter(tape.gradient(of, to, list(gradients[: len(of)]), tf.UnconnectedGradients.ZERO))
            return [next(computed_gradients) if tensor.dtype.is_floating else None for tensor in again]

        return computed, backward

    return segment


def _cannot(model: Any, conflict: str) -> UsageError:
    return UsageError(
        f"The model {model.name!r} ({type(model).__name__}) cannot be computed in segments.",
        conflict,
        "leave --activation-checkpointing out, or build the model as a graph of layers, keras.Model(inputs, outputs).",
    )


@dataclass(frozen=True)
class Cut:
    """A place through which one tensor only leads."""

    tensor: Any  # the KerasTensor
    nbytes: int  # of one sample of it
    before: int  # bytes of one sample of all activations up to and with it
    nodes: int  # layers and operations up to it


def possible_cuts(model: Any) -> list[Cut]:
    """All of a functional model's, in the order of its graph, the outputs last (whose `tensor` is all of them)."""
    nodes = [n for depth in sorted(model._nodes_by_depth, reverse=True) for n in model._nodes_by_depth[depth]]
    nodes = [node for node in nodes if node.operation is not None and not node.is_input]
    uses = {id(tensor): place for place, node in enumerate(nodes) for tensor in node.input_tensors}
    uses |= {id(tensor): len(nodes) for tensor in model.outputs}
    sizes = list(accumulate(sum(_nbytes(tensor) for tensor in node.outputs) for node in nodes))
    alive = {id(tensor): tensor for tensor in model.inputs}
    cuts = []
    for place, node in enumerate(nodes[:-1]):
        alive |= {id(tensor): tensor for tensor in node.outputs}
        alive = {key: tensor for key, tensor in alive.items() if uses.get(key, -1) > place}
        if len(alive) == 1:
            (tensor,) = alive.values()
            cuts.append(Cut(tensor, _nbytes(tensor), sizes[place], place + 1))
    return [*cuts, Cut(model.outputs, 0, sizes[-1], len(nodes))]


def best_cuts(cuts: Sequence[Cut]) -> list[Cut]:
    """Those for which the bytes of the cuts and of the largest segment (there while it is repeated) are fewest.

    The last cut, the outputs, is always one. Chen et al. 2016 (arXiv:1604.06174) choose equal segments; layers' sizes
    differ too much for that. For each bound on a segment's bytes the cheapest cuts are a shortest path.
    """
    total = cuts[-1].before
    plans = [_cheapest(cuts, total * bound / _BOUNDS) for bound in range(1, _BOUNDS + 1)]
    return min((plan for plan in plans if plan is not None), key=_kept_bytes)


def _kept_bytes(plan: Sequence[Cut]) -> int:
    ends = [0, *(cut.before for cut in plan)]
    return sum(cut.nbytes for cut in plan) + max(end - start for start, end in pairwise(ends))


def _cheapest(cuts: Sequence[Cut], bound: float) -> list[Cut] | None:
    """The cuts with the fewest bytes between which at most `bound` bytes lie; None: there are none."""
    costs, previous = [0.0], [-1]  # of ending a segment at the start, at cut 0, at cut 1, …
    starts = [0, *(cut.before for cut in cuts)]
    for cut in cuts:
        reachable = [(costs[i], i) for i in range(len(costs)) if cut.before - starts[i] <= bound]
        cost, place = min(reachable, default=(math.inf, 0))
        costs.append(cost + cut.nbytes)
        previous.append(place)
    if math.isinf(costs[-1]):
        return None
    plan, place = [], len(cuts)
    while place > 0:
        plan.append(cuts[place - 1])
        place = previous[place]
    return plan[::-1]


def _nbytes(tensor: Any) -> int:
    """Return the bytes of one sample; a dimension that is not known counts as 1."""
    values: int = math.prod(size or 1 for size in tensor.shape[1:])
    return values * _ITEM_BYTES.get(tensor.dtype, 4)
