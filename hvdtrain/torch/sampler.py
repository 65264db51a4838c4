"""torch's `DistributedSampler`, which takes its rank from Horovod."""

from typing import Any

import torch.utils.data.distributed as torch_samplers
from horovod.torch import mpi_ops
from torch.utils.data import Dataset

from hvdtrain.torch.start import require_start


class DistributedSampler(torch_samplers.DistributedSampler[Any]):
    """Each rank's part of a Dataset's indices, shuffled anew in each epoch: call `set_epoch(epoch)`.

    As torch's: all ranks get equally many, so that some records of the last batch come twice, or with `drop_last`
    some are left out. What torch's lacks: `hvd.Checkpoint` keeps the epoch and the seed.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if num_replicas is None or rank is None:
            require_start("hvdtrain.torch.DistributedSampler")
        size = mpi_ops.size() if num_replicas is None else num_replicas
        super().__init__(dataset, size, mpi_ops.rank() if rank is None else rank, shuffle, seed, drop_last)

    def state_dict(self) -> dict[str, int]:
        """What gives the order of indices, with any number of ranks."""
        return {"epoch": self.epoch, "seed": self.seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Shuffle as the sampler did whose state this is."""
        self.epoch, self.seed = state["epoch"], state["seed"]
