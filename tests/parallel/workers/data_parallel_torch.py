"""hvdtrain.torch.DistributedDataParallel beside torch's own in the same processes: the same bits.

Started by torchrun, whose variables both read. The last line says that this rank has passed all checks.
"""

import copy
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from loops_torch import Pictures
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import hvdtrain.torch as hvd
import hvdtrain.torch.distributed as dist
from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.torch.model_gradients import ModelGradients

Wrapper = Callable[..., Any]


class Branches(Pictures):
    """One layer is used by some ranks in some updates."""

    def __init__(self) -> None:
        super().__init__(norm=True)
        self.sometimes = nn.Linear(10, 10)

    def forward(self, pictures: torch.Tensor, words: torch.Tensor, branch: bool = False) -> torch.Tensor:
        output = super().forward(pictures, words)
        return self.sometimes(output) if branch else output


def batches(rank: int, count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(rank)
    for _ in range(count):
        yield (
            torch.randn(4, 3, 8, 8, generator=generator),
            torch.randint(0, 50, (4,), generator=generator),
            torch.randint(0, 10, (4,), generator=generator),
        )


def trained(
    wrap: Wrapper, hook: Callable[..., Any] | None = None, joins: Sequence[dict[str, bool]] = (), state: Any = None
) -> Any:
    """Updates with accumulation, clipping after backward(), weight decay, evaluation between, and uneven data."""
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = wrap(Branches(), find_unused_parameters=True, bucket_cap_mb=1)
    if hook is not None:
        model.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=0.1)
    for step, (pictures, words, labels) in enumerate(batches(rank, 20)):
        with model.no_sync() if step % 2 == 0 else nullcontext():
            branch = step % 6 == 3 and rank == 1
            cross_entropy(model(pictures, words, branch=branch), labels).backward()
        if step % 2:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            model.eval()
            with torch.no_grad():
                model(pictures, words)
            model.train()
    for arguments in joins:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)  # another state: join makes models equal only
        fails = "throw_on_early_termination" in arguments
        with pytest.raises(RuntimeError) if fails else nullcontext(), model.join(**arguments):
            for pictures, words, labels in batches(rank + 10, 2 + 2 * rank):
                update(model, optimizer, pictures, words, labels)
    return model


def update(model: Any, optimizer: torch.optim.Optimizer, *batch: torch.Tensor) -> None:
    cross_entropy(model(*batch[:2]), batch[2]).backward()
    optimizer.step()
    optimizer.zero_grad()


def averaged(wrap: Wrapper) -> nn.Module:
    """An average of the weights, which is in a deep copy of the wrapper; at last the copy is trained, too."""
    torch.manual_seed(0)
    model = wrap(Branches(), find_unused_parameters=True)
    copy = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for batch in batches(dist.get_rank(), 3):
        update(model, optimizer, *batch)
        copy.update_parameters(model)
    for batch in batches(dist.get_rank() + 10, 2):
        update(copy, torch.optim.SGD(copy.parameters(), lr=0.02), *batch)
    return nn.ModuleList([model, copy])


def same_bits(first: nn.Module, second: nn.Module, tolerance: float = 0.0) -> None:
    assert list(first.state_dict()) == list(second.state_dict())
    for name, value in first.state_dict().items():
        torch.testing.assert_close(value, second.state_dict()[name], rtol=tolerance, atol=tolerance)


def it_trains_as_torchs() -> None:
    joins = ({"throw_on_early_termination": True}, {}, {"divide_by_initial_world_size": False})
    ours = trained(hvd.DistributedDataParallel, joins=joins)
    same_bits(ours, trained(nn.parallel.DistributedDataParallel, joins=joins), 1e-6)
    hvd.assert_equal(ours)
    assert ours.module.unused.weight.grad is None  # decay acts on no layer that no rank has used


def copies_train_as_torchs() -> None:
    ours = averaged(hvd.DistributedDataParallel)
    same_bits(ours, averaged(nn.parallel.DistributedDataParallel), 1e-6)


def complex_weights_train_as_torchs() -> None:
    trained = []
    for wrap in (hvd.DistributedDataParallel, nn.parallel.DistributedDataParallel):
        torch.manual_seed(0)
        model: Any = wrap(nn.Linear(3, 2, dtype=torch.complex64))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.full((4, 3), 1j + dist.get_rank())).abs().square().sum().backward()
        optimizer.step()
        trained.append(model)
    same_bits(*trained, tolerance=1e-6)


class Twice(nn.Module):
    """A layer that each backward pass adds to the gradients of twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        rows = rows.requires_grad_()
        for _ in range(2):
            rows = checkpoint(self.layer, rows, use_reentrant=True)
        output: torch.Tensor = self.last(rows)
        return output


def layers_used_twice_in_checkpoints_train_as_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `static_graph`; from the second update on, the exchange begins before the backward pass ends."""
    began: list[bool] = []
    on_full = ModelGradients._on_full
    monkeypatch.setattr(ModelGradients, "_on_full", lambda self, it: (began.append(self._ends), on_full(self, it)))
    trained = []
    for wrap in (hvd.DistributedDataParallel, nn.parallel.DistributedDataParallel):
        torch.manual_seed(0)
        model: Any = wrap(Twice(), static_graph=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        draws = torch.Generator().manual_seed(dist.get_rank())
        for _ in range(4):
            model(torch.randn(6, 4, generator=draws)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        trained.append(model)
    same_bits(*trained, tolerance=1e-6)
    assert began == [True] * 3
    twice = hvd.DistributedDataParallel(Twice())
    twice(torch.ones(6, 4)).sum().backward()
    with pytest.raises(UsageError, match=r"(?s)more often than 1 times.*static_graph=True"):
        twice(torch.ones(6, 4)).sum().backward()


def a_wrapper_that_was_saved_whole_trains() -> None:
    model = hvd.DistributedDataParallel(Branches(), bucket_cap_mb=1)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for batch in batches(dist.get_rank(), 2):
        for each in (model, loaded):
            update(each, torch.optim.SGD(each.parameters(), lr=0.02), *batch)
    same_bits(model, loaded)
    hvd.assert_equal(nn.ModuleList(p for n, p in loaded.module.named_children() if n != "norm"))


class Named(hvd.DistributedDataParallel):
    """With an argument and an attribute of its own."""

    def __init__(self, module: nn.Module, names: list[str]) -> None:
        super().__init__(module)
        self.names = names


def a_copy_keeps_what_a_wrapper_has() -> None:
    module = Branches()
    module.register_buffer("mask", torch.tensor([dist.get_rank() == 0, True]))
    model = Named(module, ["a"])
    assert model.module.mask.tolist() == [True, True]  # type: ignore[union-attr]
    calls: list[Any] = []
    model.register_forward_hook(lambda *_: calls.append(None))
    copied = copy.deepcopy(model)
    assert copied.names == ["a"]
    assert copied.names is not model.names
    for batch in batches(dist.get_rank(), 2):
        for each in (model, copied):
            update(each, torch.optim.SGD(each.parameters(), lr=0.02), *batch)
    assert len(calls) >= 2
    same_bits(model, copied)


def collectives_take_what_torchs_take() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = torch.arange(6.0).reshape(2, 3) + rank
    part = whole[:, 1]
    work = dist.all_reduce(part, async_op=True)
    assert work is not None
    assert work.wait()
    assert work.wait()
    assert work.is_completed()
    assert part.tolist() == [sum(1.0 + r for r in range(size)), sum(4.0 + r for r in range(size))]
    assert whole[:, 0].tolist() == [rank, 3.0 + rank]
    flags = torch.tensor([rank == 0, False])
    dist.broadcast(flags, 0)
    assert flags.tolist() == [True, False]
    rows = [torch.zeros(2) for _ in range(size)]
    gathered = dist.all_gather(rows, torch.full((2, 2), float(rank))[:, 0], async_op=True)
    assert gathered is not None
    assert gathered.wait()
    assert [row.tolist() for row in rows] == [[float(r)] * 2 for r in range(size)]
    one = torch.ones(1)
    dist.all_reduce(one, op=torch.distributed.ReduceOp.SUM)
    assert one.item() == size
    for parameter in (nn.Parameter(torch.ones(2).bfloat16()), nn.Parameter(torch.ones(3, 2).t())):
        dist.all_reduce(parameter)
        assert set(parameter.flatten().tolist()) == {size}
        dist.broadcast(parameter, 0)
    of_each = torch.zeros(size)
    dist.all_gather_into_tensor(of_each, torch.tensor(float(rank)))
    assert of_each.tolist() == list(range(size))
    mean = hvd.Mean()
    mean.update(torch.tensor(float(rank)), torch.tensor([2]))
    assert mean.compute() == (size - 1) / 2
    hvd.assert_equal({"all": [{name: torch.ones(1) for name in ("ab" if rank else "ba")}]})
    work = dist.barrier(async_op=True)
    assert work is not None
    assert work.wait()
    sampler = dist.DistributedSampler(range(10), size, rank, False)  # type: ignore[arg-type]
    assert list(sampler) == list(range(rank, 10, size))[: len(sampler)]


def hooks_on_a_bucket() -> None:
    def mean(_state: Any, bucket: Any) -> torch.Tensor:
        assert sum(part.numel() for part in bucket.gradients()) == bucket.buffer().numel()
        return hvd.allreduce(bucket.buffer(), name=f"mine.{bucket.index()}")

    plain = trained(hvd.DistributedDataParallel)
    for hook, tolerance in (
        (mean, 1e-6),
        (default_hooks.fp16_compress_hook, 1e-2),
        (default_hooks.bf16_compress_hook, 5e-2),
    ):
        ours = trained(hvd.DistributedDataParallel, hook)
        hvd.assert_equal(nn.ModuleList(p for n, p in ours.module.named_children() if n != "norm"))
        same_bits(ours, plain, tolerance)
    for first, bounds in ((10, (0.0, 1e-6)), (3, (1e-4, 1e9))):  # of 10 updates
        late = trained(
            hvd.DistributedDataParallel, powersgd.powerSGD_hook, state=powersgd.PowerSGDState(None, 4, first)
        )
        difference = max(float((a - b).abs().max()) for a, b in zip(late.parameters(), plain.parameters(), strict=True))
        assert bounds[0] <= difference <= bounds[1], difference
    joined = trained(hvd.DistributedDataParallel, default_hooks.bf16_compress_hook, joins=[{}])
    hvd.assert_equal(joined)
    same_bits(joined, trained(hvd.DistributedDataParallel, joins=[{}]), 5e-2)


def other_hooks_and_arguments_are_refused() -> None:
    hvd.DistributedDataParallel(nn.SyncBatchNorm(2))  # synchronized by torch.distributed, which is initialized here
    model, with_hook = (hvd.DistributedDataParallel(nn.Linear(2, 2)) for _ in range(2))
    with_hook.register_comm_hook(None, default_hooks.allreduce_hook)
    for call in (
        lambda: model.register_comm_hook(None, default_hooks.fp16_compress_wrapper),
        lambda: hvd.DistributedDataParallel(nn.Linear(2, 2), device_ids=[0, 1]),
        lambda: hvd.DistributedDataParallel(nn.Linear(2, 2).requires_grad_(False)),
        lambda: hvd.DistributedDataParallel(nn.Linear(2, 2), process_group=torch.distributed.group.WORLD),
        lambda: hvd.DistributedDataParallel(nn.Linear(2, 2 + hvd.rank())),
        lambda: with_hook.register_comm_hook(None, default_hooks.allreduce_hook),
        lambda: model.register_comm_hook(powersgd.PowerSGDState(None, warm_start=False), powersgd.powerSGD_hook),
        lambda: dist.init_process_group(init_method="file:///nowhere"),
        lambda: dist.init_process_group(world_size=7),
        lambda: dist.send,
    ):
        with pytest.raises((UsageError, HvdtrainError)) as caught:
            call()
        assert "HINT: " in str(caught.value)


def functions_of_torch_distributed() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    total = torch.tensor([float(rank + 1)])
    dist.all_reduce(total)
    assert float(total) == size * (size + 1) / 2
    most = torch.tensor([float(rank)])
    work = dist.all_reduce(most, dist.ReduceOp.MAX, async_op=True)
    assert work is not None
    assert work.wait()
    assert float(most) == size - 1
    rows = [torch.zeros(2) for _ in range(size)]
    dist.all_gather(rows, torch.full((2,), float(rank)))
    assert [float(row[0]) for row in rows] == list(range(size))
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank}, group=dist.group.WORLD)
    assert objects == [{"rank": n} for n in range(size)]
    sent = [f"from {rank}"]
    dist.broadcast_object_list(sent, src=1)
    assert sent == ["from 1"]
    dist.barrier()
    sampler = dist.DistributedSampler(list(range(10)), shuffle=False)
    assert list(sampler) == [*range(rank, 10, size), *range(10 % size)][: len(sampler)]
    shuffled, other = (dist.DistributedSampler(list(range(10)), seed=seed) for seed in (1, 2))
    shuffled.set_epoch(3)
    other.load_state_dict(shuffled.state_dict())
    assert list(other) == list(shuffled)
    assert dist.new_group() is dist.group.WORLD
    with pytest.raises(UsageError, match="set HOROVOD_DYNAMIC_PROCESS_SETS=1 in the environment before the start"):
        dist.new_group([0])


def tensors_of_any_dtype_are_those_of_torch_distributed() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.bfloat16, torch.uint8, torch.int8, torch.int64, torch.complex64, torch.float64):
        mine = torch.arange(1, 7).reshape(2, 3).to(dtype) * (1 + rank)
        ours, theirs = ([torch.zeros_like(mine) for _ in range(size)] for _ in range(2))
        dist.all_gather(ours, mine)
        torch.distributed.all_gather(theirs, mine)
        torch.testing.assert_close(ours, theirs)
        for op in ("SUM", "MAX")[: 1 if dtype.is_complex else 2]:
            one, other = mine.clone(), sum(theirs) if op == "SUM" else torch.stack(theirs).amax(0)
            waiting = dist.all_reduce(one, getattr(dist.ReduceOp, op), async_op=True)
            assert waiting is not None
            waiting.wait()
            torch.testing.assert_close(one, other)
        dist.broadcast(mine, src=1)
        torch.testing.assert_close(mine, theirs[1])


def a_training_goes_on(folder: str) -> None:
    """Saved by these ranks; `loops_torch.py` restores it with another number of ranks."""
    torch.manual_seed(hvd.rank())
    model = Pictures()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    checkpoint = hvd.Checkpoint(folder, model=model, optimizer=optimizer)
    assert checkpoint.restore().step == 0
    hvd.assert_equal(model)
    for pictures, words, labels in batches(0, 3):
        optimizer.zero_grad()
        cross_entropy(model(pictures, words), labels).backward()
        optimizer.step()
        assert not hvd.stop_requested()
    checkpoint.save(2, epoch=0)
    values = {"sum": float(sum(p.detach().double().sum() for p in model.parameters())), "note": ["a", 1.5]}
    checkpoint.save(3, wait=True, **values)
    restored = Pictures()
    other = torch.optim.AdamW(restored.parameters(), lr=0.5)
    again = hvd.Checkpoint(folder, model=restored, optimizer=other)
    with pytest.raises(UsageError, match="restore\\(\\) was not called"):
        again.save(1)
    found = again.restore()
    assert (found.step, dict(found.values)) == (3, values)
    same_bits(model, restored)
    assert other.param_groups[0]["lr"] == 0.01
    for pictures, words, labels in batches(1, 1):
        for each, its in ((model, optimizer), (restored, other)):
            its.zero_grad()
            cross_entropy(each(pictures, words), labels).backward()
            its.step()
    same_bits(model, restored)


def main(folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    it_trains_as_torchs()
    copies_train_as_torchs()
    complex_weights_train_as_torchs()
    with pytest.MonkeyPatch.context() as monkeypatch:
        layers_used_twice_in_checkpoints_train_as_torchs(monkeypatch)
    a_wrapper_that_was_saved_whole_trains()
    a_copy_keeps_what_a_wrapper_has()
    hooks_on_a_bucket()
    collectives_take_what_torchs_take()
    functions_of_torch_distributed()
    tensors_of_any_dtype_are_those_of_torch_distributed()
    other_hooks_and_arguments_are_refused()
    a_training_goes_on(folder)
    sys.stdout.write(f"CHECKED rank {hvd.rank()} of {hvd.size()} in {Path(__file__).name}\n")
    dist.destroy_process_group()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
