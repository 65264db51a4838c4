"""`DistributedDataParallel`: torch's wrapper of a model, on Horovod and on our buckets.

Gradients are the mean over ranks when `backward()` returns, so that a script may clip them, clear them, or look at them
as with torch's.
"""

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from horovod.torch import mpi_ops
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from hvdtrain.adapters.choose_sync import BUCKET_BYTES
from hvdtrain.adapters.torch.gradient_sync import trainable_of
from hvdtrain.adapters.torch.state_checks import require_common_statistics
from hvdtrain.comm.horovod_world import is_elastic
from hvdtrain.errors import UsageError
from hvdtrain.torch.agreement import compare
from hvdtrain.torch.comm_hook_functions import HookFunction, hook_of
from hvdtrain.torch.compilation import not_compiled
from hvdtrain.torch.functions import broadcast_within
from hvdtrain.torch.model_buffers import broadcast_buffers_of, share_buffers_while_joining
from hvdtrain.torch.model_gradients import ModelGradients
from hvdtrain.torch.process_groups import process_set_of
from hvdtrain.torch.reduction import Reduction
from hvdtrain.torch.start import join, require_start, start_count
from hvdtrain.torch.uneven_batches import require_even


class DistributedDataParallel(nn.Module):
    """Wrap a model, so that each backward pass gives all ranks the mean of their gradients.

    Construct it on all ranks: they compare their parameters, and rank 0's parameters and buffers are sent to all. A
    parameter that no rank's loss has used keeps its gradient, as torch has it with find_unused_parameters=True; that
    costs nothing here.

    Args:
        module: the model, on its device.
        device_ids: None, or the one GPU of this worker, to which inputs are moved.
        broadcast_buffers: send rank 0's buffers (BatchNorm's statistics) to all before a forward pass; True by default.
        init_sync: compare and send parameters and buffers now.
        process_group: None, or a `ProcessSet` of Horovod's.
        bucket_cap_mb: MiB of the largest bucket of several gradients; 25 by default.
        static_graph: each backward pass uses the same parameters as often; they may then be used several times within
            reentrant checkpoints.
        output_device, dim, find_unused_parameters, check_reduction, gradient_as_bucket_view,
        skip_all_reduce_unused_params: as torch's; they change nothing here.
        others: further arguments of torch's.

    Raises:
        UsageError: before `hvd.init()`, nothing to train, several devices, an argument that is not supported, or
            torch's SyncBatchNorm where torch.distributed is not initialized.
        MismatchedModelsError: ranks have different parameters.
    """

    static_graph = False  # as in wrappers that earlier versions have saved
    _world = -1  # in which the last pass was made

    def __init__(
        self,
        module: nn.Module,
        device_ids: Any = None,
        output_device: Any = None,  # noqa: ARG002  torch's
        dim: int = 0,  # noqa: ARG002
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,  # noqa: ARG002
        check_reduction: bool = False,  # noqa: ARG002
        gradient_as_bucket_view: bool = False,  # noqa: ARG002
        static_graph: bool = False,
        skip_all_reduce_unused_params: bool = False,  # noqa: ARG002
        **others: Any,
    ) -> None:
        super().__init__()
        require_start("hvdtrain.torch.DistributedDataParallel")
        _check(module, device_ids, others)
        self.module = module
        self.device_ids = device_ids or None
        self.broadcast_buffers = True if broadcast_buffers is None else broadcast_buffers
        self.require_backward_grad_sync = True
        self._syncs_buffers, self._requires_even, self._has_hook = True, False, False
        self._bucket_cap_mb, self.static_graph = bucket_cap_mb, static_graph
        self._connect(process_set_of(process_group))
        if init_sync:
            compare(self._gradients.trainable, self._reduction.process_set)
            self._send_from(self._first_rank)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The module's output. Collective where buffers are sent: in training, and in the first pass without it."""
        if self._requires_even:
            require_even(True)
        if self._world != start_count():  # workers that have joined send theirs in their first pass
            self._world, self._syncs_buffers = start_count(), True
        if self._syncs_buffers and self.broadcast_buffers:
            self._sync_buffers()
        if self.device_ids:
            inputs, named = tree_map(partial(_moved, self.device_ids[0]), (inputs, named))
        trains = torch.is_grad_enabled() and self.require_backward_grad_sync
        self._syncs_buffers = trains
        if torch.is_grad_enabled():
            self._gradients.expect_backward(held=not trains)
        output = self.module(*inputs, **named)
        if trains:  # a loss may use no parameter on this rank, and the others wait for it
            for tensor in tree_leaves(output):
                if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                    tensor.register_hook(self._gradients.expect_end)  # type: ignore[no-untyped-call]
        return output

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """In this block, gradients are only added up on this rank; the next backward pass after it reduces them."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    @contextmanager
    def join(
        self, divide_by_initial_world_size: bool = True, enable: bool = True, throw_on_early_termination: bool = False
    ) -> Iterator[None]:
        """Train with different numbers of batches: a rank that has no more adds zeros to the others' sums.

        At the end, all ranks have the parameters and buffers of a rank that had the most batches.

        Args:
            divide_by_initial_world_size: divide sums of gradients by the number of all ranks, not of those that still
                have batches.
            enable: False: all ranks have equally many batches, and nothing is exchanged for this.
            throw_on_early_termination: ask before each forward pass whether all ranks have a batch.

        Raises:
            UnevenBatchesError: a RuntimeError, on all ranks: one of them has no more batches, and others have, with
                `throw_on_early_termination`.
            UsageError: with a `process_group` that does not have all ranks.
        """
        if not enable or mpi_ops.size() == 1:
            yield
            return
        _require_whole(self._reduction.process_set)
        self._gradients.joins, self._gradients.divides_by_active = True, not divide_by_initial_world_size
        self._requires_even = throw_on_early_termination
        try:
            yield
        finally:
            self._gradients.joins = self._requires_even = False
        if throw_on_early_termination:
            require_even(False)
        self._send_from(join())

    def register_comm_hook(self, state: Any, hook: HookFunction) -> None:
        """Let `hook(state, bucket)` reduce each bucket: its result, or that of the future that it returns, becomes the
        bucket's gradients. Call it before the first backward pass, on all ranks.

        Of torch's hooks, allreduce, fp16_compress, bf16_compress and powerSGD are known; others are refused.

        Raises `UsageError`: for those, for what cannot be called, and for a second hook.
        """
        if self._has_hook:
            raise UsageError(
                "register_comm_hook was called a second time.",
                "A bucket has one reduction.",
                "register one hook, which may call other functions.",
            )
        self._gradients.set_hook(hook_of(state, hook, self._gradients.trainable, self._reduction))
        self._has_hook = True

    @not_compiled
    def _sync_buffers(self) -> None:
        if self._gradients.joins:
            share_buffers_while_joining(self.module)
        else:
            broadcast_buffers_of(self.module, self._first_rank, self._reduction.process_set)

    @property
    def _first_rank(self) -> int:
        """Of the group, in the world."""
        first: int = min(self._reduction.process_set.ranks or [0])
        return first

    def _send_from(self, root: int) -> None:
        broadcast_within(self.module.state_dict(), root, self._reduction.process_set)

    def __deepcopy__(self, memo: dict[int, Any]) -> "DistributedDataParallel":
        """A wrapper of a copy of the module, for example for an average of the weights. Not collective."""
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        vars(copied).update(copy.deepcopy(self.__getstate__(), memo))
        copied._connect(self._reduction.process_set)
        return copied

    def __getstate__(self) -> dict[str, Any]:
        """For `torch.save(model)`: all but the comm hook and process_group, as torch keeps it."""
        kept = {name: value for name, value in vars(self).items() if name not in ("_gradients", "_reduction")}
        return {**kept, "_has_hook": False}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._connect(process_set_of(None))

    def _connect(self, process_set: Any) -> None:
        """Let these ranks reduce gradients. Sends nothing."""
        require_start("hvdtrain.torch.DistributedDataParallel")
        self._reduction = Reduction(process_set=process_set)
        cap = BUCKET_BYTES if self._bucket_cap_mb is None else max(1, int(self._bucket_cap_mb * 2**20))
        self._gradients = ModelGradients(trainable_of(self.module), self._reduction, cap=cap)
        self._gradients.is_static = self.static_graph

    def _set_static_graph(self) -> None:
        """As torch's: the argument `static_graph`, given later."""
        self.static_graph = self._gradients.is_static = True


def _require_whole(group: Any) -> None:
    if group.size() < mpi_ops.size():
        raise UsageError(
            f"join() was called, and process_group has {group.size()} of {mpi_ops.size()} ranks.",
            "Horovod's join is one of all ranks.",
            "give the ranks of the group equally many batches, or leave process_group out.",
        )


def _moved(device: Any, value: Any) -> Any:
    return value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value


_NOT_SUPPORTED = {
    "delay_all_reduce_named_params": "leave it out.",
    "param_to_hook_all_reduce": "leave it out.",
    "mixed_precision": "use torch.autocast.",
    "device_mesh": "leave it out; process_group takes a ProcessSet.",
    "bucket_cap_mb_list": "use bucket_cap_mb.",
    "forward_sync_buffers": "use broadcast_buffers.",
}
_WITHOUT_EFFECT = ("batched_grad_copy",)


def _check(module: nn.Module, device_ids: Any, others: dict[str, Any]) -> None:
    unknown = [name for name in others if name not in _NOT_SUPPORTED and name not in _WITHOUT_EFFECT]
    if unknown:
        raise TypeError(f"DistributedDataParallel.__init__() got an unexpected keyword argument {unknown[0]!r}")
    for name, hint in _NOT_SUPPORTED.items():
        if others.get(name) is not None:
            raise UsageError(f"DistributedDataParallel was given {name}.", "It is not supported on Horovod.", hint)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise UsageError(
            "DistributedDataParallel was given a model without a parameter that requires a gradient.",
            "There is nothing to reduce.",
            "use the model itself.",
        )
    if device_ids is not None and len(device_ids) > 1:
        raise UsageError(
            f"device_ids names {len(device_ids)} devices.",
            "Each worker trains on one.",
            "start a worker for each device, and give device_ids=[hvd.local_rank()].",
        )
    if mpi_ops.size() > 1 or is_elastic(os.environ):
        converter = "hvdtrain.torch.SyncBatchNorm.convert_sync_batchnorm(model)"
        require_common_statistics(module, f"call {converter} before, in the place of torch's function of that name.")
