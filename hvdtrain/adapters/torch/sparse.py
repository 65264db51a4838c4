"""Sparse gradients in torch: rows of embeddings are gathered from all ranks as they are, and added up afterwards."""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from hvdtrain.adapters.choose_sync import ChosenSync, no_sparse_gradients
from hvdtrain.adapters.torch.buckets import Trainable
from hvdtrain.adapters.torch.gradient_sync import GradientSync, NoSync, summed_gradients, trainable_of
from hvdtrain.adapters.torch.optimizers import RuleOptimizer
from hvdtrain.errors import UsageError

_DENSE = "leave --sparse-gradients out, which makes gradients dense."

StartGather = Callable[[torch.Tensor, str], Callable[[], torch.Tensor]]
"""Starts to join all ranks' rows of a tensor under a name; what it returns waits for them."""


class SparseGradients(GradientSync):
    """The gradient sync of --sparse-gradients allgather. Each rank may have touched other rows, or none.

    With one process sparse gradients remain sparse too, so that it trains as many processes do.

    Raises `UsageError`: no gradient of the model is sparse, or the optimizer does not take sparse ones.
    """

    fixed_by = "--sparse-gradients allgather"

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, chosen: ChosenSync) -> None:
        super().__init__()
        checks = torch.sparse.check_sparse_tensor_invariants
        if not checks.is_enabled():  # type: ignore[no-untyped-call]
            checks.disable()  # type: ignore[no-untyped-call]  # no change, but torch warns until it is set explicitly
        self._parameters = sparse_parameters(model)
        if not self._parameters:
            raise no_sparse_gradients("torch.nn.Embedding(…, sparse=True)", "build an embedding so, or ")
        require_taking_sparse(optimizer, self._parameters)
        dense, alone = trainable_of(model, without=frozenset(self._parameters.values())), chosen.ranks == 1
        self._others: GradientSync = NoSync(dense) if alone else summed_gradients(dense, chosen)
        self._start_gather: StartGather = (lambda tensor, _name: lambda: tensor) if alone else _start_gather()

    def set_trainable(self, trainable: Trainable) -> None:
        self._others.set_trainable([(name, p) for name, p in trainable if name not in self._parameters])

    def set_grad_sync(self, last: bool) -> None:
        self._others.set_grad_sync(last)

    def finish(self) -> None:
        sparse = {name: _local_rows(name, parameter) for name, parameter in self._parameters.items()}
        pending = [  # an embedding is most often the first layer
            (
                self._start_gather(indices, f"hvdtrain.rows.{name}.indices"),
                self._start_gather(values, f"hvdtrain.rows.{name}.values"),
            )
            for name, (indices, values) in sparse.items()
        ]
        self._others.finish()
        for parameter, (indices, values) in zip(self._parameters.values(), pending, strict=True):
            rows = indices().unsqueeze(0)
            gathered = torch.sparse_coo_tensor(rows, values(), parameter.shape)
            parameter.grad = gathered.coalesce() if rows.numel() else None

    def clear(self) -> None:
        self._others.clear()
        for parameter in self._parameters.values():
            parameter.grad = None


def _local_rows(name: str, parameter: nn.Parameter) -> tuple[torch.Tensor, torch.Tensor]:
    """int64 [n], each row of this rank's gradient once, and their values [n, …]; none where its loss needed none."""
    gradient = parameter.grad
    if gradient is None:
        return torch.empty(0, dtype=torch.int64, device=parameter.device), parameter.detach()[:0]
    if not gradient.is_sparse:
        raise UsageError(
            f"The gradient of {name} is dense.",
            "Its layer has sparse=True, but the model uses the weights in another way too.",
            _DENSE,
        )
    summed = gradient.coalesce()
    return summed.indices()[0], summed.values()


def sparse_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Find, by name, the weights that only embeddings with `sparse=True` use: the same on all ranks."""
    elsewhere: set[nn.Parameter] = set()
    sparse: set[nn.Parameter] = set()
    for module in model.modules():
        is_sparse = isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
        (sparse if is_sparse else elsewhere).update(module.parameters(recurse=False))
    return {n: p for n, p in model.named_parameters() if p.requires_grad and p in sparse and p not in elsewhere}


def require_taking_sparse(optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise `UsageError` if an optimizer of torch's or of ours cannot update `parameters` by sparse gradients.

    It is tried out, with its settings, on a weight that is thrown away. A user's own optimizer is not tried out.
    """
    if not (type(optimizer).__module__.startswith("torch.optim.") or isinstance(optimizer, RuleOptimizer)):
        return
    for group in optimizer.param_groups:
        names = [name for name, parameter in parameters.items() if any(parameter is other for other in group["params"])]
        if names and (reason := _why_not(optimizer, group, parameters[names[0]])):
            raise UsageError(
                f"{type(optimizer).__name__} does not take the sparse gradient of {names[0]}: {reason}.",
                "With --sparse-gradients allgather it comes as rows.",
                f"take SGD without momentum and weight decay, Adagrad or SparseAdam for it, or {_DENSE}",
            )


def _why_not(optimizer: torch.optim.Optimizer, group: dict[str, Any], like: nn.Parameter) -> str | None:
    weight = nn.Parameter(torch.zeros(2, 2, dtype=like.dtype, device=like.device))
    row = torch.zeros(1, 1, dtype=torch.int64, device=like.device)
    weight.grad = torch.sparse_coo_tensor(row, torch.ones_like(weight)[:1], weight.shape).coalesce()
    twin = object.__new__(type(optimizer))
    state: defaultdict[torch.Tensor, dict[str, Any]] = defaultdict(dict)
    fresh = {"state": state, "param_groups": [{**group, "params": [weight]}]}
    hooks: dict[str, Any] = {f"_optimizer_step_{when}_hooks": OrderedDict() for when in ("pre", "post")}
    twin.__dict__.update({**optimizer.__dict__, **fresh, **hooks})
    try:
        twin.step()
    except RuntimeError as error:
        return str(error).partition(". ")[0].rstrip(".")
    sparse = [name for name, slot in state[weight].items() if isinstance(slot, torch.Tensor) and slot.is_sparse]
    return f"it would keep {sparse[0]} sparse, which no checkpoint holds" if sparse else None


def _start_gather() -> StartGather:
    import horovod.torch as hvd

    def start(tensor: torch.Tensor, name: str) -> Callable[[], torch.Tensor]:
        handle = hvd.allgather_async(tensor.contiguous(), name=name)
        return lambda: hvd.synchronize(handle)

    return start
