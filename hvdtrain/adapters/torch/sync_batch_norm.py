"""BatchNorm with the statistics of the whole micro batch, over all workers, on CPU and GPU.

torch's own SyncBatchNorm needs torch.distributed, and Horovod's calls kernels that exist for CUDA only. This one takes
two named allreduces a layer: count, sums and sums of squares in the forward pass, two sums of gradients in the backward
pass (Ioffe and Szegedy 2015, arXiv:1502.03167, section 3, with sums over all ranks). They block, so that all ranks,
which run the same model, run them in the same order.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from hvdtrain.adapters.forward_pass import no_batch_norm, real_mask, remembered
from hvdtrain.comm.peer_failure import waits_for_peers
from hvdtrain.errors import UsageError

_native_backward: Final = torch.ops.aten.native_batch_norm_backward

SumOverRanks = Callable[[torch.Tensor, str], torch.Tensor]
"""The element-wise sum of a flat tensor over ranks, under a name that is the same on all of them."""


def convert_sync_batch_norm(
    model: nn.Module, sum_over_ranks: SumOverRanks | None, asked_by: str = "--sync-batch-norm"
) -> nn.Module:
    """Let every BatchNorm of `model` take its statistics over all ranks, and over real rows only (`batch_mask`).

    Layers stay the objects they are, with their parameters, buffers, hooks and names: a state_dict does not change, and
    an optimizer may have been built before or after. In evaluation they are as before.

    Args:
        sum_over_ranks: `horovod_sum`, or None with one process: then there are no collectives.
        asked_by: the option or the function by which the user has asked for it.

    Raises `UsageError`: there is no BatchNorm, or one of another class, whose own methods would be lost.
    """
    if not any(isinstance(layer, _BatchNorm) for layer in model.modules()):
        raise no_batch_norm(type(model).__name__)
    for name, layer in model.named_modules():
        if not isinstance(layer, _BatchNorm) or isinstance(layer, SynchronizedBatchNorm):
            continue
        if type(layer) not in _SYNCHRONIZED:
            raise UsageError(
                f"The layer {name!r} is a {type(layer).__name__}, which changes the methods of BatchNorm.",
                f"{asked_by} would replace them by those of torch's BatchNorm.",
                f"build the model with torch.nn.BatchNorm1d, 2d or 3d, or leave {asked_by} out.",
            )
        layer.__class__ = _SYNCHRONIZED[type(layer)]
        synchronized = cast(SynchronizedBatchNorm, layer)
        synchronized.sum_over_ranks, synchronized.place = sum_over_ranks, name
    return model


def horovod_sum(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """In-place sum of a flat tensor over ranks. Collective."""
    import horovod.torch as hvd  # one process does not need it

    with waits_for_peers(name=name):
        return cast(torch.Tensor, hvd.allreduce_(tensor, name=name, op=hvd.Sum))


@dataclass(frozen=True)
class _Statistics:
    """The statistics of C channels, in float32, or in float64 where the features are."""

    mean: torch.Tensor  # [C]
    variance: torch.Tensor  # [C], the mean of squares, not the unbiased one
    # [1], of one value in the mean: 1 / count. 0 where there were fewer than two values, which have no variance: then
    # `mean` and `variance` are the running ones, if the layer has them, and do not depend on the features.
    share: torch.Tensor
    unbiasing: torch.Tensor  # [1], count / (count - 1), or 1
    rows: torch.Tensor | None  # bool [n], which of this rank's rows count; None: all


class SynchronizedBatchNorm(_BatchNorm):
    """What a layer becomes. `convert_sync_batch_norm` makes it of an existing one; it is never constructed."""

    sum_over_ranks: SumOverRanks | None
    place: str

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self._train(features) if self.training else super().forward(features)

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # neither the mask nor a collective can be part of a compiled graph
    def _train(self, features: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(features)  # type: ignore[no-untyped-call]
        statistics = remembered(lambda: self._statistics(features))
        if statistics is None:
            return super().forward(features)
        self._update_running(statistics)
        sums = self.sum_over_ranks, f"hvdtrain.sync_batch_norm.{self.place}.backward"
        normalized: torch.Tensor = _Normalize.apply(  # type: ignore[no-untyped-call]
            features, self.weight, self.bias, statistics, self.eps, *sums
        )
        return normalized

    @torch.no_grad()
    def _statistics(self, features: torch.Tensor) -> _Statistics | None:
        """Those of `features` [n, C, ...] of all ranks; n may differ from rank to rank, and be 0. Collective.

        Each rank takes its mean and variance in float32, about its own mean. Counts, sums and sums of squares are added
        up in float64, where the difference of large numbers that merging takes loses nothing that float32 had.

        Returns:
            None: they are those that torch's own BatchNorm takes.
        """
        rows = real_mask()
        if rows is not None and rows.shape[0] != features.shape[0]:  # the first axis is not the batch's
            rows = None
        if rows is None and self.sum_over_ranks is None:
            return None
        moments = _local_moments(features, rows)
        if self.sum_over_ranks is not None:
            moments = self.sum_over_ranks(moments, f"hvdtrain.sync_batch_norm.{self.place}.forward")
        count, sums, squares = moments[:1], *moments[1:].chunk(2)
        mean = sums / count.clamp(min=1)
        variance = (squares / count.clamp(min=1) - mean.square()).clamp_(min=0)
        enough = count > 1
        if self.running_mean is not None and self.running_var is not None:
            mean = torch.where(enough, mean, self.running_mean)
            variance = torch.where(enough, variance, self.running_var)
        dtype = torch.promote_types(features.dtype, torch.float32)
        share = torch.where(enough, 1 / count, 0)
        unbiasing = torch.where(enough, count / (count - 1), 1)
        return _Statistics(mean.to(dtype), variance.to(dtype), share.to(dtype), unbiasing.to(dtype), rows)

    @torch.no_grad()
    def _update_running(self, statistics: _Statistics) -> None:
        """As torch's BatchNorm: the running variance is of unbiased ones; no momentum means the mean of all batches."""
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        counted = self.num_batches_tracked
        if counted is not None:
            counted.add_(statistics.share.ne(0).squeeze(0))
        share: torch.Tensor | float
        if self.momentum is not None:
            share = self.momentum
        else:
            share = 1 / cast(torch.Tensor, counted).clamp(min=1).to(self.running_mean.dtype)
        self.running_mean.lerp_(statistics.mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_((statistics.variance * statistics.unbiasing).to(self.running_var.dtype), share)


_SYNCHRONIZED: Final[dict[type[nn.Module], type[SynchronizedBatchNorm]]] = {
    kind: type(f"_Sync{kind.__name__}", (SynchronizedBatchNorm, kind), {})
    for kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)  # the last: for torch.distributed
}
globals().update({kind.__name__: kind for kind in _SYNCHRONIZED.values()})  # where pickle looks for them


def _local_moments(features: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
    """Count [1], sums [C] and sums of squares [C] in one float64 vector."""
    channels = features.shape[1]
    if features.numel() == 0:  # native kernels divide by the number of values
        return torch.zeros(1 + 2 * channels, dtype=torch.float64, device=features.device)
    if rows is None:
        mean, variance = _moments(features)
        count = torch.full((1,), features.numel() // channels, dtype=torch.float64, device=features.device)
    else:
        mean, variance = _masked_moments(features, rows)
        count = rows.sum(dtype=torch.float64).reshape(1) * (features[0].numel() // channels)
    mean = mean.double()
    return torch.cat([count, count * mean, count * (variance.double() + mean.square())])


def _moments(features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance by BatchNorm's own kernel: several times faster than `torch.var_mean` on a CPU.

    It returns them in the dtype of the running statistics, which are two tensors here that are not used.
    """
    dtype = torch.promote_types(features.dtype, torch.float32)
    unread = torch.zeros(2, features.shape[1], dtype=dtype, device=features.device)
    mean, variance = torch.batch_norm_update_stats(features, unread[0], unread[1], 0.0)
    return mean, variance


def _masked_moments(features: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    features = features.to(torch.promote_types(features.dtype, torch.float32)).unsqueeze(-1)
    places = tuple(range(2, features.dim()))
    count = (rows.sum() * features[0, 0].numel()).clamp(min=1)
    chosen = rows[:, None]
    mean = torch.where(chosen, features.sum(places), 0).sum(0) / count
    deviations = features - mean.view(-1, *[1] * len(places))
    return mean, torch.where(chosen, deviations.square().sum(places), 0).sum(0) / count


class _Normalize(torch.autograd.Function):
    """(x - mean) / sqrt(variance + eps) · weight + bias, differentiated through mean and variance too.

    Only x's gradient is one of all ranks' losses; those of weight and bias are this rank's, since gradients of
    parameters are summed over ranks later.
    """

    @staticmethod
    def forward(
        ctx: Any,
        features: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        statistics: _Statistics,
        eps: float,
        sum_over_ranks: SumOverRanks | None,
        name: str,
    ) -> torch.Tensor:
        scale = torch.ones_like(statistics.mean) if weight is None else weight.to(statistics.mean.dtype)
        ctx.save_for_backward(features, scale, statistics.mean, statistics.variance, statistics.share, statistics.rows)
        ctx.eps, ctx.sum_over_ranks, ctx.name = eps, sum_over_ranks, name
        ctx.dtypes = [None if parameter is None else parameter.dtype for parameter in (weight, bias)]
        offset = torch.zeros_like(scale) if bias is None else bias.to(scale.dtype)
        return _normalized(features, scale, offset, statistics.mean, statistics.variance, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        features, scale, mean, variance, share, rows = ctx.saved_tensors
        if features.numel():
            to_features, to_scale, to_offset = _native_backward(
                gradient, features, scale, mean, variance, None, None, False, ctx.eps, [True, True, True]
            )
        else:
            to_features, to_scale, to_offset = (
                torch.zeros_like(features),
                torch.zeros_like(scale),
                torch.zeros_like(scale),
            )
        if ctx.needs_input_grad[0]:  # the same on all ranks
            sums = torch.cat([to_offset, to_scale])
            if ctx.sum_over_ranks is not None:
                sums = ctx.sum_over_ranks(sums, ctx.name)
            by_mean, by_spread = (sums * share * (scale * (variance + ctx.eps).rsqrt()).repeat(2)).chunk(2)
            through_statistics = _normalized(features, by_spread, by_mean, mean, variance, ctx.eps)
            if rows is not None:  # other rows are normalized, but the statistics do not depend on them
                through_statistics *= rows.view(-1, *[1] * (features.dim() - 1))
            to_features = to_features - through_statistics
        gradients = [
            None if dtype is None else g.to(dtype) for g, dtype in zip((to_scale, to_offset), ctx.dtypes, strict=True)
        ]
        return to_features, *gradients, None, None, None, None


def _normalized(
    features: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor,
    mean: torch.Tensor,
    variance: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """One pass over the features, in their dtype and memory layout; what multiplies them is float32."""
    if not features.numel():
        return torch.empty_like(features)
    return torch.native_batch_norm(features, scale, offset, mean, variance, False, 0.0, eps)[0]
