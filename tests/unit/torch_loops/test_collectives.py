"""Errors of Horovod's, as a loop in torch sees them."""

from __future__ import annotations

import pytest
from horovod.common.exceptions import HorovodInternalError

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
