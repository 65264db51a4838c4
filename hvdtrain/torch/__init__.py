"""`import hvdtrain.torch as hvd` in the place of `import horovod.torch as hvd`.

    hvd.init()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size()))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

All names and arguments of Horovod 0.28.1 are here. Gradients travel in flat buckets that are summed in place during the
backward pass; waits for other ranks have a limit; torchrun and Slurm connect ranks too.
"""

from typing import TYPE_CHECKING, Any

from horovod.common.util import check_extension

from hvdtrain.errors import RESUMABLE, missing_name
from hvdtrain.torch import elastic, mpi_ops
from hvdtrain.torch.checkpoint import Checkpoint
from hvdtrain.torch.compression import Compression
from hvdtrain.torch.data_parallel import DistributedDataParallel
from hvdtrain.torch.equality import assert_equal
from hvdtrain.torch.functions import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters
from hvdtrain.torch.mean import Mean
from hvdtrain.torch.mpi_ops import *  # noqa: F403  its `__all__`
from hvdtrain.torch.optimizer import DistributedOptimizer
from hvdtrain.torch.run_record import run
from hvdtrain.torch.sampler import DistributedSampler
from hvdtrain.torch.stopping import stop_reason, stop_requested

if TYPE_CHECKING:
    from hvdtrain.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    "RESUMABLE",
    "Checkpoint",
    "Compression",
    "DistributedDataParallel",
    "DistributedOptimizer",
    "DistributedSampler",
    "Mean",
    "SyncBatchNorm",
    "allgather_object",
    "assert_equal",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "check_extension",
    "elastic",
    "run",
    "stop_reason",
    "stop_requested",
    *mpi_ops.__all__,
]


def __getattr__(name: str) -> Any:
    if name == "SyncBatchNorm":  # its import takes a second, as it loads torch's compiler
        from hvdtrain.torch.sync_batch_norm import SyncBatchNorm

        return SyncBatchNorm
    raise missing_name("hvdtrain.torch", name, __all__)
