"""A torch model as a chain: parts that are called one after the other, each with what the one before it returned.

torch.fx follows a model's forward() and shows what it calls. Where a single tensor leads from all that was called
before to all that comes after, the model can be cut; between two such places is a link. A task whose model cannot be
followed so says its links itself: `stages(model)`.
"""

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Final

import torch
from torch import fx, nn

from hvdtrain.adapters.torch.pipeline.followed_graph import followed, input_of, output_of
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

    def __init__(self) -> None:
        # links at which no stage can begin, as the one before returns no tensor: known when it was called
        self.inseparable: set[int] = set()

    @property
    def places(self) -> list[int]:
        """The links at which a stage can begin, the first one too."""
        return [link for link in range(len(self.names)) if link not in self.inseparable]

    def end_of(self, place: int) -> int:
        """The next place after this one, or the number of links."""
        return next(
            (link for link in range(place + 1, len(self.names)) if link not in self.inseparable), len(self.names)
        )

    @abstractmethod
    def part(self, first: int, end: int) -> nn.Module:
        """Links `first` to `end` - 1 as one module of the model's own layers, from a tensor to a tensor."""

    @cached_property
    def _parameters(self) -> dict[int, nn.Parameter]:
        return {id(parameter): parameter for parameter in self.model.parameters()}

    def trained(self, link: int) -> list[nn.Parameter]:
        """The weights of a link that are trained."""
        own = (self._parameters[identity] for identity in self.tensors[link] if identity in self._parameters)
        return [parameter for parameter in own if parameter.requires_grad]


def chain_of(task: Task, model: nn.Module) -> Chain:
    """The links of a task's model. Raises `UsageError`: it cannot be cut."""
    _require_plain_call(model)
    listed = task.stages(model)
    return _Traced(model) if listed is None else _Listed(model, listed)


def _require_plain_call(model: nn.Module) -> None:
    """Refuse what is done around the forward() of the model's class: no stage would do it."""
    lists = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
    changed = "a hook" if any(vars(model).get(name) for name in lists) else ""
    changed = changed or ("a forward() of its own" if "forward" in vars(model) else "")
    own_call = type(model).__call__ is not nn.Module.__call__ and not isinstance(model, fx.GraphModule)
    changed = changed or ("a __call__() of its own" if own_call else "")
    if changed:
        raise UsageError(
            f"The model {type(model).__name__} cannot be cut: it has {changed}.",
            "The stages call the layers that the forward() of its class calls, and nothing around them.",
            "write it into forward() of the model's class, or give it to one of its layers.",
        )


class _Listed(Chain):
    """Links that the task names."""

    is_listed = True

    def __init__(self, model: nn.Module, links: Sequence[nn.Module]) -> None:
        super().__init__()
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
        names = _names_of(model)
        self.tensors = [_tensors_of(names, [link]) for link in links]
        _require_disjoint(self)
        _require_all(self)

    def part(self, first: int, end: int) -> nn.Module:
        return nn.Sequential(*self._links[first:end])


class _Traced(Chain):
    """Links as torch.fx finds them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        graph = followed(model)
        nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output", "get_attr")]
        self._entering, self._leaving = input_of(graph, model), output_of(graph, model)
        self._runs, self.tensors = _joined_where_shared(model, _runs(nodes, self._entering, self._leaving))
        self.names = [_name_of(run) for run in self._runs]

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


def _joined_where_shared(model: nn.Module, runs: list[list[fx.Node]]) -> tuple[list[list[fx.Node]], list[Tensors]]:
    """No two runs use the same weights: those from the first to the last that does become one. And what each uses."""
    names = _names_of(model)
    tensors = [_tensors_in(model, names, run) for run in runs]
    last_use = {identity: number for number, used in enumerate(tensors) for identity in used}
    joined: list[list[fx.Node]] = []
    of_joined: list[Tensors] = []
    until = -1
    for number, (run, used) in enumerate(zip(runs, tensors, strict=True)):
        if number <= until:
            joined[-1] += run
            of_joined[-1] |= used
        else:
            joined.append(list(run))
            of_joined.append(dict(used))
        until = max([until, *(last_use[identity] for identity in used)])
    return joined, of_joined


def _tensors_in(model: nn.Module, names: Tensors, run: Sequence[fx.Node]) -> Tensors:
    modules = [model.get_submodule(str(node.target)) for node in run if node.op == "call_module"]
    attributes = {str(used.target) for node in run for used in node.all_input_nodes if used.op == "get_attr"}
    used = (id(operator.attrgetter(name)(model)) for name in attributes)
    return _tensors_of(names, modules) | {identity: names[identity] for identity in used if identity in names}


def _require_all(chain: Chain) -> None:
    listed = set().union(*chain.tensors)
    missing = [name for name, parameter in chain.model.named_parameters() if id(parameter) not in listed]
    if missing:
        raise UsageError(
            f"The task's stages() leaves out weights of its model: {', '.join(missing[:_NAMED])}.",
            "They would be neither trained nor saved.",
            "return the list of all modules of the model that are called, in the order in which they are.",
        )


def _names_of(model: nn.Module) -> Tensors:
    return {id(tensor): name for name, tensor in _all_tensors(model)}


def _tensors_of(names: Tensors, modules: Sequence[nn.Module]) -> Tensors:
    return {id(tensor): names[id(tensor)] for module in modules for _, tensor in _all_tensors(module)}


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
