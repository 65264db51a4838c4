"""Errors of Horovod's, as a loop in torch sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from horovod.common.exceptions import HorovodInternalError

import hvdtrain.torch as hvd
from hvdtrain.comm.collective_inputs import Tensors, require_tensors
from hvdtrain.errors import UsageError
from hvdtrain.torch.collectives import MismatchedCallError, submitted

JOINED = """Allgather is not supported with Join at this time.
Specify sparse_to_dense=True if using DistributedOptimizer"""  # horovod/common/controller.cc


@pytest.mark.parametrize("what", ["Barrier is", "Min and Product, and Max of floating-point numbers, are"])
def test_what_cannot_have_a_joined_ranks_zeros_has_a_sentence(what: str) -> None:
    def refuse() -> None:
        raise HorovodInternalError(f"{what} not supported with Join at this time.")

    with pytest.raises(MismatchedCallError, match="All ranks must call"):
        submitted(refuse)()


def test_an_argument_is_named_as_it_is_called() -> None:
    def refuse() -> None:
        raise HorovodInternalError(JOINED)

    with pytest.raises(MismatchedCallError, match="Specify sparse_as_dense=True"):
        submitted(refuse)()


SCALAR = torch.tensor(2.0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: hvd.alltoall(SCALAR),
            "hvd.alltoall was given a tensor without dimensions",
        ),  # Horovod ends the process
        (lambda: hvd.alltoall_async(tensor=SCALAR), "hvd.alltoall_async was given a tensor without dimensions"),
        (lambda: hvd.allgather(SCALAR), "hvd.allgather was given a tensor without dimensions"),
        (lambda: hvd.grouped_reducescatter([torch.ones(2), SCALAR]), "hvd.grouped_reducescatter was given a tensor"),
        (lambda: hvd.allreduce(None), "hvd.allreduce was given a value of the type NoneType"),
        (lambda: hvd.broadcast_(np.ones(2), 0), "hvd.broadcast_ was given a value of the type ndarray"),
        (
            lambda: hvd.grouped_allreduce([torch.ones(2), [1.0]]),
            "hvd.grouped_allreduce was given a value of the type list",
        ),
    ],
)
def test_what_is_no_tensor_or_has_no_rows_has_a_sentence(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        call()
    assert isinstance(caught.value, ValueError)


def test_a_generator_of_tensors_is_not_used_up() -> None:
    tensors = (torch.ones(2) for _ in range(3))
    require_tensors("grouped_allreduce", tensors, Tensors(torch.is_tensor, "", ""))
    assert len(list(tensors)) == 3
