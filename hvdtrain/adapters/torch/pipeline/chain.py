"""A torch model as a chain: parts that are called one after the other, each with what the one before it returned.

torch.fx follows a model's forward() and shows what it calls. Where a single tensor leads from all that was called
before to all that comes after, the model can be cut; between two such places is a link. A task whose model cannot be
followed so says its links itself: `stages(model)`.
"""

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch import fx, nn

from hvdtrain.errors import UsageError
from hvdtrain.task.task import Task

_NAMED: Final = 8  # layers in a message

Tensors = dict[int, str]
"""Weights and buffers by their identity, with their names in the model."""


class Chain(ABC):
    """A model's links, in their order."""

    is_listed: bool = False  # whether the task says which links there are
    model: nn.Module
    names: Sequence[str]  # of the links: the name of the first layer in each
    tensors: Sequence[Tensors]  # which weights and buffers each link uses

    @abstractmethod
    def part(self, first: int, end: int) -> nn.Module:
        """Links `first` to `end` - 1 as one module of the model's own layers, from a tensor to a tensor."""

    def trained(self, link: int) -> list[nn.Parameter]:
        tensors = self.tensors[link]
        return [p for p in self.model.parameters() if p.requires_grad and id(p) in tensors]


def chain_of(task: Task, model: nn.Module) -> Chain:
    """The links of a task's model. Raises `UsageError`: it cannot be cut."""
    listed = task.stages(model)
    return _Traced(model) if listed is None else _Listed(model, listed)


class _Listed(Chain):
    """Links that the task names."""

    is_listed = True

    def __init__(self, model: nn.Module, links: Sequence[nn.Module]) -> None:
        self.model = model
        known = {module: name for name, module in model.named_modules()}
        is_list = isinstance(links, list | tuple)
        if not is_list or len(links) < 1 or any(not isinstance(link, nn.Module) or link not in known for link in links):
            raise UsageError(
                "The task's stages() returned something else than layers of its model.",
                "Their weights would be neither trained nor saved.",
                "return the list of those modules of the model that are called one after the other.",
            )
        self._links = list(links)
        self.names = [known[link] for link in links]
        self.tensors = [_tensors_of(model, [link]) for link in links]
        _require_disjoint(self)
        _require_all(self)

    def part(self, first: int, end: int) -> nn.Module:
        return nn.Sequential(*self._links[first:end])


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


class _Traced(Chain):
    """Links as torch.fx finds them."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        graph = _followed(model)
        nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output", "get_attr")]
        self._entering, self._leaving = _input_of(graph, model), _output_of(graph, model)
        runs = _joined_where_shared(model, _runs(nodes, self._entering, self._leaving))
        self._runs = runs
        self.names = [_name_of(run) for run in runs]
        self.tensors = [_tensors_in(model, run) for run in runs]

    def part(self, first: int, end: int) -> nn.Module:
        nodes = [node for run in self._runs[first:end] for node in run]
        graph = fx.Graph()
        entering = self._runs[first - 1][-1] if first else self._entering
        leaving = self._leaving if end == len(self._runs) else nodes[-1]
        made: dict[fx.Node, fx.Node] = {entering: graph.placeholder("entering")}

        def copied(node: fx.Node) -> fx.Node:
            if node not in made:  # a weight that is used as it is
                made[node] = graph.node_copy(node)
            return made[node]

        for node in nodes:
            made[node] = graph.node_copy(node, copied)
        graph.output(made[leaving])
        part = fx.GraphModule(self.model, graph)
        part.train(self.model.training)
        return part


def _followed(model: nn.Module) -> fx.Graph:
    """What forward() calls, in training and in evaluation alike."""
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


def _input_of(graph: fx.Graph, model: nn.Module) -> fx.Node:
    inputs: list[fx.Node] = [node for node in graph.nodes if node.op == "placeholder" and node.users]
    if len(inputs) != 1:
        raise _no_chain(model, f"Its forward() uses {len(inputs)} inputs.")
    return inputs[0]


def _output_of(graph: fx.Graph, model: nn.Module) -> fx.Node:
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


def _runs(nodes: Sequence[fx.Node], entering: fx.Node, leaving: fx.Node) -> list[list[fx.Node]]:
    """The nodes between places at which a single value leads on."""
    position = {node: number for number, node in enumerate(nodes)}
    last_use = {
        node: max((position.get(user, len(nodes)) for user in node.users), default=position[node]) for node in nodes
    }
    last_use[leaving] = len(nodes)
    entering_until = max(position[user] for user in entering.users if user in position)
    runs, run, alive = [], [], set[fx.Node]()
    for number, node in enumerate(nodes):
        run.append(node)
        alive = {other for other in (*alive, node) if last_use[other] > number}
        if alive == {node} and entering_until <= number and _may_be_passed(node):
            runs.append(run)
            run = []
    return [*runs[:-1], runs[-1] + run] if run and runs else [run] if run else runs


def _may_be_passed(node: fx.Node) -> bool:
    """Whether what it returns may be a tensor; shapes and their parts are numbers."""
    if node.op == "call_function" and node.target in (getattr, torch.Size):
        return False
    if any(user.op == "call_function" and user.target is operator.getitem for user in node.users):
        return False  # of a tuple, as recurrent layers return one
    return not (node.op == "call_method" and node.target in ("size", "dim", "numel"))


def _joined_where_shared(model: nn.Module, runs: list[list[fx.Node]]) -> list[list[fx.Node]]:
    """No two runs use the same weights: those from the first to the last that does become one."""
    number = 0
    while number < len(runs):
        tensors = _tensors_in(model, runs[number])
        later = [n for n in range(number + 1, len(runs)) if tensors.keys() & _tensors_in(model, runs[n]).keys()]
        if later:
            end = later[-1] + 1
            runs = [*runs[:number], [node for run in runs[number:end] for node in run], *runs[end:]]
        else:
            number += 1
    return runs


def _tensors_in(model: nn.Module, run: Sequence[fx.Node]) -> Tensors:
    modules = [model.get_submodule(str(node.target)) for node in run if node.op == "call_module"]
    tensors = _tensors_of(model, modules)
    attributes = {str(used.target) for node in run for used in node.all_input_nodes if used.op == "get_attr"}
    return tensors | {id(tensor): name for name, tensor in _all_tensors(model) if name in attributes}


def _require_all(chain: Chain) -> None:
    listed = set().union(*chain.tensors)
    missing = [name for name, parameter in chain.model.named_parameters() if id(parameter) not in listed]
    if missing:
        raise UsageError(
            f"The task's stages() leaves out weights of its model: {', '.join(missing[:_NAMED])}.",
            "They would be neither trained nor saved.",
            "return the list of all modules of the model that are called, in the order in which they are.",
        )


def _tensors_of(model: nn.Module, modules: Sequence[nn.Module]) -> Tensors:
    within = {id(tensor) for module in modules for _, tensor in _all_tensors(module)}
    return {id(tensor): name for name, tensor in _all_tensors(model) if id(tensor) in within}


def _all_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _name_of(run: Sequence[fx.Node]) -> str:
    called: Any = next((node for node in run if node.op == "call_module"), run[0])
    return str(called.target) if called.op == "call_module" else called.name


def _require_disjoint(chain: Chain) -> None:
    seen: dict[int, str] = {}
    for name, tensors in zip(chain.names, chain.tensors, strict=True):
        for identity, weight in tensors.items():
            if identity in seen:
                raise UsageError(
                    f"The weight {weight} belongs to two of the task's stages(), {seen[identity]} and {name}.",
                    "Each worker would update a copy of its own.",
                    "return both as one module.",
                )
            seen[identity] = name
