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
from typing import Final

import torch

from benchmarks.checkpoint import others
from benchmarks.checkpoint.state import Bag, IsDurable, Save, optimizer_of

_MATRIX: Final = 384
_STEPS: Final = 20  # of which a usual step's time is the median
SAVES: Final = 3


def hvdtrain(model: Bag, optimizer: torch.optim.Optimizer, folder: Path, waits: bool) -> Save:
    """Our writer, in a job of one process; it also computes and stores hashes, and flushes to the disk."""
    from hvdtrain.adapters.torch.state import read_state
    from hvdtrain.checkpoints.format import Position
    from hvdtrain.checkpoints.store import CheckpointStore
    from hvdtrain.checkpoints.writer import CheckpointWriter
    from hvdtrain.comm.communicator import SerialCommunicator
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


_ARMS: Mapping[str, Callable[[Bag, torch.optim.Optimizer, Path], Save]] = MappingProxyType(
    {
        "hvdtrain_async": lambda *of: hvdtrain(*of, waits=False),
        "hvdtrain_async_again": lambda *of: hvdtrain(*of, waits=False),
        "hvdtrain_sync": lambda *of: hvdtrain(*of, waits=True),
        "torch_save": others.torch_save,
        "dcp_async": others.dcp_async,
        "lightning_async": others.lightning_async,
        "composer": others.composer,
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
