"""The world that `hvd.init()` has joined, for agreement of all ranks."""

from horovod.torch import mpi_ops

from hvdtrain.comm.communicator import Communicator, HorovodCommunicator, SerialCommunicator
from hvdtrain.comm.open import require_joined
from hvdtrain.comm.torch_binding import TorchBinding
from hvdtrain.topology import Topology


def communicator(wanted: str) -> Communicator:
    """All ranks. Raises `UsageError` before `init`. Args: `wanted`: what the program called."""
    require_joined(mpi_ops, wanted)
    here = Topology(mpi_ops.rank(), mpi_ops.size(), mpi_ops.local_rank(), mpi_ops.local_size())
    return HorovodCommunicator(TorchBinding(), here) if here.is_distributed else SerialCommunicator(here)
