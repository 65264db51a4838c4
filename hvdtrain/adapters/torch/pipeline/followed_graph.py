"""What a torch model's forward() calls, as torch.fx sees it."""

from typing import Any, Final

import torch
from torch import fx, nn

from hvdtrain.errors import UsageError

_NAMED: Final = 8  # layers in a message


class _Tracer(fx.Tracer):
    """Follows forward() into containers of layers, but not into layers and blocks, which are called as they are.

    So what a block does differently in training and in evaluation stays its own.
    """

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if super().is_leaf_module(m, module_qualified_name) or next(m.children(), None) is None:
            return True
        outer, _, _ = module_qualified_name.rpartition(".")
        in_row = isinstance(self.root.get_submodule(outer), nn.Sequential | nn.ModuleList)
        return in_row and not isinstance(m, nn.Sequential | nn.ModuleList)


def followed(model: nn.Module) -> fx.Graph:
    """What forward() calls, the same in training and evaluation. Raises UsageError: it differs, or cannot be seen."""
    was_training, before = model.training, set(vars(model))
    graphs, constants = [], []
    for training in (False, True):
        for name in vars(model).keys() - before:
            delattr(model, name)
        graphs.append(_graph_of(model.train(training)))
        constants.append({name: vars(model)[name] for name in vars(model).keys() - before})
    model.train(was_training)
    if str(graphs[0]) != str(graphs[1]) or not _are_equal(*constants):
        raise UsageError(
            f"The model {type(model).__name__} cannot be cut: its forward() calls other things in training than in "
            "evaluation.",
            "What torch.fx has followed once is called in both.",
            "use layers such as nn.Dropout in place of functions that take `training`, or write `def stages(self, "
            f"model)` in the task, which returns a list of layers{_layers_of(model)}.",
        )
    return graphs[1]


def _are_equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether the tensors that forward() makes, and which torch.fx keeps in the model, are the same each time."""
    pairs = [(one[name], other[name]) for name in one if name in other]
    return one.keys() == other.keys() and all(
        isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
        for a, b in pairs
    )


def _graph_of(model: nn.Module) -> fx.Graph:
    try:
        return _Tracer().trace(model)
    except Exception as error:  # torch.fx raises what the model's own code raises when it is given no values
        raise UsageError(
            f"The model {type(model).__name__} cannot be cut: torch.fx cannot follow its forward(): "
            f"{str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__}.",
            "--parallel.stages needs to know which layers are called one after the other.",
            f"write `def stages(self, model)` in the task, which returns them as a list{_layers_of(model)}, or use "
            "nn.Sequential.",
        ) from error


def _layers_of(model: nn.Module) -> str:
    """Name the layers between which the model could be cut, if they are called one after the other: for a message."""
    names = [name for name, _ in model.named_children()]
    shown = ", ".join(f"model.{name}" for name in names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
    return f" (its own layers are {shown})" if names else ""


def input_of(graph: fx.Graph, model: nn.Module) -> fx.Node:
    """The tensor that forward() is given. Raises UsageError: it uses none, or several."""
    inputs: list[fx.Node] = [node for node in graph.nodes if node.op == "placeholder" and node.users]
    if len(inputs) != 1:
        raise _no_chain(model, f"Its forward() uses {len(inputs)} inputs.")
    return inputs[0]


def output_of(graph: fx.Graph, model: nn.Module) -> fx.Node:
    """What forward() returns. Raises UsageError: it is no single value."""
    (output,) = (node for node in graph.nodes if node.op == "output")
    returned: object = output.args[0]
    if not isinstance(returned, fx.Node):
        raise _no_chain(model, f"Its forward() returns a {type(returned).__name__}.")
    return returned


def _no_chain(model: nn.Module, fact: str) -> UsageError:
    return UsageError(
        f"The model {type(model).__name__} cannot be cut. {fact}",
        "What is passed from one stage to the next is one tensor.",
        "let measure() call the model with one tensor, and the model return one.",
    )
