"""Mean and variance of each channel over the real rows of all ranks, by one allreduce."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

SumOverRanks = Callable[[torch.Tensor, str], torch.Tensor]
"""The element-wise sum of a flat tensor over ranks, under a name that is the same on all of them."""


@dataclass(frozen=True)
class BatchStatistics:
    """The statistics of C channels, in float32, or in float64 where the features are."""

    mean: torch.Tensor  # [C]
    variance: torch.Tensor  # [C], the mean of squares, not the unbiased one
    # [1], of one value in the mean: 1 / count. 0 where there were fewer than two values, which have no variance: then
    # `mean` and `variance` are the running ones, if the layer has them, and do not depend on the features.
    share: torch.Tensor
    unbiasing: torch.Tensor  # [1], count / (count - 1), or 1
    rows: torch.Tensor | None  # bool [n], which of this rank's rows count; None: all


@torch.no_grad()
def batch_statistics(
    features: torch.Tensor,
    rows: torch.Tensor | None,
    running: tuple[torch.Tensor, torch.Tensor] | None,
    sum_over_ranks: SumOverRanks | None,
    name: str,
) -> BatchStatistics:
    """Statistics of `features` [n, C, ...] of all ranks; n may differ from rank to rank, and be 0. Collective.

    Each rank takes its mean and variance in float32, about its own mean. Counts, sums and sums of squares are added up
    in float64, where the difference of large numbers that merging takes loses nothing that float32 had.
    """
    moments = _local_moments(features, rows)
    if sum_over_ranks is not None:
        moments = sum_over_ranks(moments, name)
    count, sums, squares = moments[:1], *moments[1:].chunk(2)
    mean = sums / count.clamp(min=1)
    variance = (squares / count.clamp(min=1) - mean.square()).clamp_(min=0)
    enough = count > 1
    if running is not None:
        mean, variance = torch.where(enough, mean, running[0]), torch.where(enough, variance, running[1])
    dtype = torch.promote_types(features.dtype, torch.float32)
    share = torch.where(enough, 1 / count, 0)
    unbiasing = torch.where(enough, count / (count - 1), 1)
    return BatchStatistics(mean.to(dtype), variance.to(dtype), share.to(dtype), unbiasing.to(dtype), rows)


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
