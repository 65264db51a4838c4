"""The same training in other frameworks: `python -m benchmarks.overhead.peers fabric|accelerate|lightning`.

Each imports its own package only, from an environment that `setup_peers` makes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from benchmarks.overhead.bare import batches
from benchmarks.overhead.problem import Clock, model, optimizer_of, timed
from hvdtrain.models.torchvision_import import import_torchvision


def fabric() -> None:
    """Lightning Fabric: the loop is one's own."""
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    network: Any = model()
    network, optimizer = fabric.setup(network, optimizer_of(network))
    loader: Any = fabric.setup_dataloaders(batches("loader"))
    for x, y in timed(loader, Clock()):
        optimizer.zero_grad()
        fabric.backward(functional.mse_loss(network(x)[:, 0], y))
        optimizer.step()


def accelerate() -> None:
    """Hugging Face Accelerate: the loop is one's own."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    network: Any = model()
    network, optimizer, loader = accelerator.prepare(network, optimizer_of(network), batches("loader"))
    for x, y in timed(loader, Clock()):
        optimizer.zero_grad()
        accelerator.backward(functional.mse_loss(network(x)[:, 0], y))
        optimizer.step()


def lightning() -> None:
    """Lightning's Trainer, without its logger, checkpoints and bar."""
    import lightning as pl

    clock = Clock()

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = model()

        def training_step(self, batch: Any, number: int) -> Any:  # noqa: ARG002
            x, y = batch
            return functional.mse_loss(self.network(x)[:, 0], y)

        def configure_optimizers(self) -> Any:
            return optimizer_of(self.network)

        def on_train_batch_end(self, *_: Any) -> None:
            clock.step()

    off: Mapping[str, Any] = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    pl.Trainer(accelerator="cpu", devices=1, max_epochs=1, **off).fit(Module(), batches("loader"))


_PEERS: Mapping[str, Callable[[], None]] = {"fabric": fabric, "accelerate": accelerate, "lightning": lightning}

if __name__ == "__main__":
    torch.set_num_threads(1)
    import_torchvision()  # which Lightning imports: a build for CUDA fails beside a CPU torch without this
    _PEERS[sys.argv[1]]()
