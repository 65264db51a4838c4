"""A tensor arrives at the other stage as it was sent: numbers, shape, type and layout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.adapters.torch.pipeline.stage_boundaries import LocalLink, from_message, to_message

TYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64])


@given(shape=st.lists(st.integers(0, 4), max_size=5), dtype=TYPES, data=st.data(), seed=st.integers(0, 9))
def test_a_message_is_the_tensor(shape: list[int], dtype: torch.dtype, data: Any, seed: int) -> None:
    order = data.draw(st.permutations(range(len(shape))))
    sent = torch.rand(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).permute(order)
    received = from_message(to_message(sent))
    torch.testing.assert_close(received, sent, rtol=0, atol=0)
    assert received.dtype == dtype


def test_channels_last_stays_so() -> None:
    sent = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert from_message(to_message(sent)).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("count", [1, 3])
def test_both_ends_in_one_process_keep_the_order(count: int) -> None:
    first, second = LocalLink.pair(torch.device("cpu"), torch.device("cpu"))
    for number in range(count):
        first.send(torch.full((2,), float(number)))
        second.send(torch.full((3,), float(-number)))
    assert [second.receive()[0].item() for _ in range(count)] == [*range(count)]
    assert [-first.receive()[0].item() for _ in range(count)] == [*range(count)]
