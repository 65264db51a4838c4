"""What local SGD sends in torch: every tensor once, in few messages, whatever its dtype and layout."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdtrain.adapters.choose_sync import BUCKET_BYTES
from hvdtrain.adapters.torch.local_sgd import _Average, _buckets

pytestmark = pytest.mark.timeout(60)

DTYPES = (torch.float32, torch.float64, torch.bfloat16)


class Doubling:
    """In the place of Horovod; ranks whose mean is twice what this one has."""

    Average = "average"

    def __init__(self) -> None:
        self.sent: list[tuple[str, torch.dtype]] = []

    def allreduce_async_(self, tensor: torch.Tensor, name: str, op: str) -> torch.Tensor:
        assert op == self.Average
        assert tensor.dim() == 1
        self.sent.append((name, tensor.dtype))
        return tensor

    def synchronize(self, handle: torch.Tensor) -> torch.Tensor:
        return handle.mul_(2)


@given(kinds=st.lists(st.tuples(st.sampled_from(DTYPES), st.integers(1, 4), st.booleans()), max_size=8))
@settings(max_examples=40)
def test_tensors_become_the_mean_in_their_own_layout(kinds: list[tuple[torch.dtype, int, bool]]) -> None:
    tensors = []
    for place, (dtype, side, channels_last) in enumerate(kinds):
        tensor = torch.arange(side * 3 * 2 * 2, dtype=dtype).view(side, 3, 2, 2) + place
        tensors.append(tensor.to(memory_format=torch.channels_last) if channels_last else tensor)
    before = [(tensor.clone(), tensor.stride()) for tensor in tensors]
    hvd: Any = Doubling()
    for number, bucket in enumerate(_buckets(tensors)):
        _Average(hvd, bucket, f"weights.{number}").finish()
    for tensor, (old, stride) in zip(tensors, before, strict=True):
        assert torch.equal(tensor, old * 2)
        assert tensor.stride() == stride
    assert len(hvd.sent) == len({dtype for dtype, _, _ in kinds}) == len(dict(hvd.sent))
    assert torch.bfloat16 not in dict(hvd.sent).values()


@given(sizes=st.lists(st.integers(1, 40), max_size=30))
def test_buckets_are_as_full_as_they_may_be_and_keep_the_order(sizes: list[int]) -> None:
    tensors = [torch.empty(size * BUCKET_BYTES // 64, dtype=torch.float32, device="meta") for size in sizes]
    buckets = list(_buckets(tensors))
    assert [id(tensor) for bucket in buckets for tensor in bucket] == [id(tensor) for tensor in tensors]
    assert all(len(bucket) == 1 or _bytes(bucket) <= BUCKET_BYTES for bucket in buckets)
    for bucket, following in pairwise(buckets):
        assert _bytes([*bucket, following[0]]) > BUCKET_BYTES


def _bytes(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
