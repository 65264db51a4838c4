"""What is taken as a `process_group`."""

from typing import Any

from horovod.torch import mpi_ops

from hvdtrain.errors import UsageError


def process_set_of(process_group: Any) -> Any:
    """The group, or all ranks for None. Raises `UsageError`: it is not one of Horovod's sets of ranks."""
    if process_group is not None and not isinstance(process_group, mpi_ops.ProcessSet):
        raise UsageError(
            f"process_group is a {type(process_group).__name__}.",
            "Tensors travel through Horovod, which knows its own sets of ranks only.",
            "give a ProcessSet of hvd.add_process_set(ranks), or hvdtrain.torch.distributed.new_group(ranks).",
        )
    return process_group or mpi_ops.global_process_set
