"""The peers' ways to save the same state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from benchmarks.checkpoint.state import Bag, IsDurable, Save


def torch_save(model: Bag, optimizer: torch.optim.Optimizer, folder: Path) -> Save:
    """As scripts do it: neither hashes, nor flushed to the disk."""

    def save(step: int) -> IsDurable:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, folder / "a.pt")
        return lambda: True

    return save


def dcp_async(model: Bag, optimizer: torch.optim.Optimizer, folder: Path) -> Save:
    """PyTorch's own, in a process group of one."""
    import torch.distributed as dist
    from torch.distributed import checkpoint as dcp

    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)

    def save(step: int) -> IsDurable:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        future: Any = dcp.async_save(state, checkpoint_id=folder / f"step{step}")
        return lambda: bool(future.done())

    return save


def lightning_async(model: Bag, optimizer: torch.optim.Optimizer, folder: Path) -> Save:
    """Lightning's plugin alone, without its Trainer's own work."""
    from hvdtrain.models.torchvision_import import import_torchvision

    import_torchvision()  # which Lightning imports: a build for CUDA fails beside a CPU torch without this
    from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO

    plugin: Any = AsyncCheckpointIO(TorchCheckpointIO())

    def save(step: int) -> IsDurable:
        state = {"state_dict": model.state_dict(), "optimizer_states": [optimizer.state_dict()], "global_step": step}
        plugin.save_checkpoint(state, folder / f"step{step}.ckpt")
        queued = plugin._executor.submit(int)  # its only thread comes to this after the checkpoint
        return lambda: bool(queued.done())

    return save


def composer(model: Bag, optimizer: torch.optim.Optimizer, folder: Path) -> Save:
    """What Composer's CheckpointSaver calls in the loop, without its Trainer's own work."""
    from hvdtrain.models.torchvision_import import import_torchvision

    import_torchvision()
    from composer.core import State
    from composer.devices import DeviceCPU
    from composer.models import ComposerModel
    from composer.utils.checkpoint import save_checkpoint

    class Wrapped(ComposerModel):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, batch: Any) -> Any:
            raise NotImplementedError("it is saved, not trained")

        def loss(self, outputs: Any, batch: Any) -> Any:
            raise NotImplementedError("it is saved, not trained")

    fixed = {"rank_zero_seed": 0, "run_name": "run", "device": DeviceCPU(), "device_train_microbatch_size": 1}
    state = State(model=Wrapped(), optimizers=optimizer, max_duration="1ep", **fixed)

    def save(step: int) -> IsDurable:
        save_checkpoint(state, str(folder / f"step{step}.pt"))
        return lambda: True

    return save
