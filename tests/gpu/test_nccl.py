"""Horovod's collectives of one rank on the GPU, which NCCL carries: two ranks of NCCL cannot share one GPU."""

from __future__ import annotations

import json
from pathlib import Path

from support.commands import run_python
from support.gpu import visible

OPERATIONS = """
import torch
import horovod.torch as hvd

hvd.init()
assert hvd.nccl_built() and hvd.cuda_built(), "Horovod was built without NCCL"
torch.cuda.set_device(0)
for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64):
    tensor = torch.arange(1000, device="cuda").remainder(7).to(dtype)
    name = str(dtype)
    assert torch.equal(hvd.allreduce(tensor, op=hvd.Sum, name=f"sum.{name}"), tensor)
    assert torch.equal(hvd.broadcast(tensor, 0, name=f"broadcast.{name}"), tensor)
    assert torch.equal(hvd.allgather(tensor, name=f"gather.{name}"), tensor)
several = [torch.full((count,), float(count), device="cuda") for count in (1, 10, 1000)]
for given, got in zip(several, hvd.grouped_allreduce(several, op=hvd.Sum, name="group"), strict=True):
    assert torch.equal(given, got)
hvd.shutdown()
"""

KIND = """
import horovod.torch as hvd
from hvdtrain.comm.torch_binding import TorchAllreduce

hvd.init()
reduction = TorchAllreduce()
assert (reduction.kind, reduction.device.type) == ("nccl", "cuda"), (reduction.kind, reduction.device)
reduction.prepare(1 << 20)()
hvd.shutdown()
"""


def test_collectives_of_tensors_on_the_gpu_are_carried_by_nccl(tmp_path: Path) -> None:
    timeline = tmp_path / "timeline.json"
    env = {**visible(), "HOROVOD_TIMELINE": str(timeline)}
    ended = run_python(["-c", OPERATIONS], tmp_path, env)
    assert ended.code == 0, ended
    text = timeline.read_text(encoding="utf-8").rstrip().rstrip(",")
    names = {event.get("name") for event in json.loads(text if text.endswith("]") else f"{text}]")}
    assert "NCCL_ALLREDUCE" in names, names


def test_the_doctors_allreduce_is_that_of_the_gpu(tmp_path: Path) -> None:
    ended = run_python(["-c", KIND], tmp_path, visible())
    assert ended.code == 0, ended
