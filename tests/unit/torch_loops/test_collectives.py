"""Errors of Horovod's, as a loop in torch sees them."""

from __future__ import annotations

import pytest
from horovod.common.exceptions import HorovodInternalError

from hvdtrain.torch.collectives import MismatchedCallError, submitted

JOINED = """Allgather is not supported with Join at this time.
Specify sparse_to_dense=True if using DistributedOptimizer"""  # horovod/common/controller.cc


def test_an_argument_is_named_as_it_is_called() -> None:
    def refuse() -> None:
        raise HorovodInternalError(JOINED)

    with pytest.raises(MismatchedCallError, match="Specify sparse_as_dense=True"):
        submitted(refuse)()
