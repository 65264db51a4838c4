"""One way to save, in a loop of steps: `python -m benchmarks.checkpoint.worker ARM MEGABYTES FOLDER`.

Prints JSON: {"stall_seconds", "slower_seconds", "durable_seconds", "step_seconds"}, the medians of SAVES saves.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import nn

_TENSOR_ELEMENTS: Final = 250_000  # 1 MB
_MATRIX: Final = 384
_STEPS: Final = 20  # of which a usual step's time is the median
SAVES: Final = 3

IsDurable = Callable[[], bool]
Save = Callable[[int], IsDurable]
"""Begins to save after that many updates; what it returns says whether the checkpoint is complete."""


class Bag(nn.Module):
    """Weights of a total size, half of the state; their gradients are never made."""

    def __init__(self, megabytes: int) -> None:
        super().__init__()
        count = max(1, megabytes // 2)
        self.weights = nn.ParameterList(torch.randn(_TENSOR_ELEMENTS) for _ in range(count))


def optimizer_of(model: Bag) -> torch.optim.Optimizer:
    """SGD whose momentum is there, as large as the weights."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for weight in model.parameters():
        optimizer.state[weight]["momentum_buffer"] = torch.randn_like(weight)
    return optimizer


def hvdtrain(model: Bag, optimizer: torch.optim.Optimizer, folder: Path, waits: bool) -> Save:
    """Our writer, in a job of one process; it also computes and stores hashes, and flushes to the disk."""
    from hvdtrain.adapters.torch.state import read_state
    from hvdtrain.checkpoints.format import Position
    from hvdtrain.checkpoints.store import CheckpointStore
    from hvdtrain.checkpoints.writer import CheckpointWriter
    from hvdtrain.comm.interface import SerialCommunicator
    from hvdtrain.topology import Topology

    writer = CheckpointWriter(SerialCommunicator(Topology.single()), CheckpointStore(folder, keep=1), {})

    def save(step: int) -> IsDurable:
        if writer.under_way:
            writer.collect()
        writer.begin(lambda earlier: read_state(model, optimizer, earlier), Position(step, step))
        if waits:
            writer.collect()
        wanted = writer.collected + writer.under_way
        return lambda: writer.ended() >= wanted

    return save


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


_ARMS: Mapping[str, Callable[[Bag, torch.optim.Optimizer, Path], Save]] = MappingProxyType(
    {
        "hvdtrain_async": lambda *of: hvdtrain(*of, waits=False),
        "hvdtrain_async_again": lambda *of: hvdtrain(*of, waits=False),
        "hvdtrain_sync": lambda *of: hvdtrain(*of, waits=True),
        "torch_save": torch_save,
        "dcp_async": dcp_async,
        "lightning_async": lightning_async,
    }
)


def measure(save: Save) -> dict[str, float]:
    """Seconds: for which a save stalls the loop, by which later steps are slower, until it is complete."""
    matrix = torch.randn(_MATRIX, _MATRIX)

    def step() -> float:
        begin = time.perf_counter()
        for _ in range(4):
            torch.mm(matrix, matrix)
        return time.perf_counter() - begin

    usual = statistics.median(step() for _ in range(_STEPS))
    found: list[tuple[float, float, float]] = []
    for number in range(SAVES + 1):
        begin = time.perf_counter()
        is_durable = save(number + 1)
        stall = time.perf_counter() - begin
        slower = 0.0
        while not is_durable():
            slower += step() - usual
        found.append((stall, slower, time.perf_counter() - begin))
        for _ in range(_STEPS):
            step()
    stall, slower, durable = (statistics.median(column) for column in zip(*found[1:], strict=True))  # not the first
    return {"stall_seconds": stall, "slower_seconds": slower, "durable_seconds": durable, "step_seconds": usual}


def main() -> None:
    """Save as the arguments say, and print what it costs."""
    torch.set_num_threads(1)
    name, megabytes, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    model = Bag(megabytes)
    print(json.dumps(measure(_ARMS[name](model, optimizer_of(model), folder))), flush=True)


if __name__ == "__main__":
    main()
