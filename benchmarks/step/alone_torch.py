"""What one writes by hand for one GPU: compiled, bf16, channels last, a fused optimizer; and the same by
DistributedDataParallel in a group of one process.

The batch comes from pinned memory of the host in each step, as with a `DataLoader(pin_memory=True)`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks.step import hand_protocol, networks_torch
from benchmarks.step.workload import LR, SEED


def main() -> None:
    """Train on one batch; without a GPU on the CPU, for a look."""
    options = hand_protocol.parse()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(SEED)
    model = networks_torch.build(options.model).to(device)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if options.ddp:
        model = _in_group_of_one(model, device)
    compiled: Any = torch.compile(model, mode=options.compile_mode)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, fused=True)
    x, y = (_on_host(tensor, device) for tensor in networks_torch.own_batch(options.model, 0, 1))

    def step() -> torch.Tensor:
        own_x, own_y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = functional.cross_entropy(compiled(own_x), own_y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    hand_protocol.run(options, step, float, lambda own: own, rank=0)
    if options.ddp:
        distributed.destroy_process_group()


def _in_group_of_one(model: nn.Module, device: torch.device) -> nn.Module:
    backend, store = "nccl" if device.type == "cuda" else "gloo", distributed.HashStore()
    distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    return DistributedDataParallel(model, gradient_as_bucket_view=True)


def _on_host(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """As the GPU takes it fastest: pinned, and pictures channels last."""
    if tensor.ndim == 4:
        tensor = tensor.contiguous(memory_format=torch.channels_last)
    return tensor.pin_memory() if device.type == "cuda" else tensor


if __name__ == "__main__":
    main()
