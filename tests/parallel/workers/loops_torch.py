"""Loops of users' own with hvdtrain.torch, on several ranks under a real launcher: what they must be equal to.

Each check is run in the order of the file; the last line says that this rank has passed all.
"""

import copy
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from loops_torch_changes import (
    a_closure_may_return_bfloat16,
    a_resumed_optimizer_changes_no_weight,
    a_scheduler_made_before_wrapping_is_followed,
    compiled_steps_train_as_others,
    frozen_layers_rest_until_they_are_unfrozen,
    parameters_that_come_later_train_as_in_one_process,
    ranks_that_read_their_groups_stay_together,
    two_optimizers_take_turns,
)
from loops_torch_elastic import ELASTIC_CHECKS
from loops_torch_sparse import SPARSE_CHECKS
from loops_torch_unused import UNUSED_CHECKS
from torch import nn
from torch.nn.functional import cross_entropy

import hvdtrain.torch as hvd
from hvdtrain.errors import DivergenceError, HvdtrainError, UsageError
from hvdtrain.torch.agreement import MismatchedModelsError
from hvdtrain.torch.collectives import MismatchedCallError
from hvdtrain.torch.loop_gradients import WrongOrderError
from hvdtrain.torch.optimizer_arguments import WrongArgumentError

UPDATES = 20
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "fp16": {"compression": hvd.Compression.fp16},
    "predivide": {"gradient_predivide_factor": 2.0},
    "two passes": {"backward_passes_per_step": 2},
    "groups": {"groups": 2, "sparse_as_dense": True},
    "sum": {"op": hvd.Sum},
}


class Pictures(nn.Module):
    """Gradients below and above 1 MiB, in two memory layouts; one layer is never used, and one is frozen."""

    def __init__(self, sparse: bool = False, norm: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.norm = nn.BatchNorm2d(8) if norm else nn.Identity()
        self.large = nn.Linear(288, 1200)
        self.middle = nn.Linear(1200, 300)
        self.unused = nn.Linear(4, 4)
        self.frozen = nn.Linear(10, 10).requires_grad_(False)
        self.words = nn.Embedding(50, 10, sparse=sparse)
        self.last = nn.Linear(300, 10)

    def forward(self, pictures: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.large(self.norm(self.conv(pictures)).flatten(1)))
        return self.frozen(self.last(torch.relu(self.middle(hidden)))) + self.words(words)


def batches(count: int, parts: int) -> Iterator[list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]]:
    """The global batch of each update, in parts: all ranks see the same ones."""
    generator = torch.Generator().manual_seed(7)
    for _ in range(count):
        yield [
            (
                torch.randn(4, 3, 8, 8, generator=generator),
                torch.randint(0, 50, (4,), generator=generator),
                torch.randint(0, 10, (4,), generator=generator),
            )
            for _ in range(parts)
        ]


def trained(case: dict[str, Any], distributed: bool) -> nn.Module:
    """The model after some updates: this rank's part of each batch, or all parts one after the other."""
    passes, op = case.get("backward_passes_per_step", 1), case.get("op", hvd.Average)
    torch.manual_seed(3 + (hvd.rank() if distributed else 0))
    model = Pictures(sparse=True)
    # A mean of the parts, or their sum; weight decay acts on the unused layer too, as in Horovod.
    rows = [p for name, p in model.named_parameters() if name == "words.weight"]
    dense = [p for name, p in model.named_parameters() if name != "words.weight"]
    groups = [{"params": dense, "momentum": 0.9, "weight_decay": 0.01}, {"params": rows}]
    optimizer = torch.optim.SGD(groups, lr=0.02)
    if distributed:
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), **case)
        hvd.broadcast_parameters(model.state_dict(), 0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
    for update in batches(UPDATES, hvd.size() * passes):
        optimizer.zero_grad()
        mine = update[hvd.rank() * passes : (hvd.rank() + 1) * passes] if distributed else update
        for pictures, words, labels in mine:
            loss = cross_entropy(model(pictures, words), labels)
            (loss if distributed or op == hvd.Sum else loss / hvd.size()).backward()
        if distributed:
            optimizer.synchronize()
        else:
            for parameter in model.unused.parameters():
                parameter.grad = torch.zeros_like(parameter)
        nn.utils.clip_grad_norm_(dense, 0.5)
        if distributed:
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        schedule.step()
    return model


def many_ranks_train_as_one() -> None:
    for name, case in CASES.items():
        ours, alone = trained(case, True), trained(case, False)
        hvd.assert_equal(ours)
        for key, value in alone.state_dict().items():
            tolerance = 2e-3 if name == "fp16" else 1e-4
            torch.testing.assert_close(ours.state_dict()[key], value, rtol=tolerance, atol=tolerance)


def a_closure_is_reduced() -> None:
    torch.manual_seed(1)
    model = nn.Linear(4, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe"))
    rows = torch.randn(8, 4, generator=torch.Generator().manual_seed(hvd.rank()))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(rows) - rows.sum(1, keepdim=True)).square().mean()
        loss.backward()
        return loss

    losses = [float(optimizer.step(closure)) for _ in range(3)]
    assert losses[-1] < 1e-3 * losses[0], losses
    hvd.assert_equal(model)
    model.reset_parameters()
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe"), op=hvd.Sum
    )
    mine = float((model(rows) - rows.sum(1, keepdim=True)).square().mean())
    found = optimizer.step(lambda: float(closure()))  # a number, and the sum, as the gradients are
    assert abs(found - sum(hvd.allgather_object(mine))) < 1e-4 * found, (found, mine)
    hvd.assert_equal(model)


def a_scaler_needs_no_synchronize() -> None:
    """It looks at the optimizer's groups, which waits for the reduction: all ranks see the same gradients, and inf."""
    torch.manual_seed(8)
    model = nn.Linear(3, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    rows = torch.randn(hvd.size(), 4, 3)
    expected, start = model.weight.detach().clone(), model.weight.detach().clone()
    for step in range(4):
        optimizer.zero_grad()
        loss = model(rows[hvd.rank()]).mean() * (float("inf") if step == 2 and hvd.rank() == 0 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        expected -= 0.1 * rows.mean((0, 1)) * (step != 2)
    torch.testing.assert_close(model.weight.detach(), expected)
    assert not torch.equal(expected, start)
    hvd.assert_equal(model)


def ranks_with_fewer_batches_join() -> None:
    torch.manual_seed(2)
    model = nn.Linear(4, 2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(2 + hvd.rank()):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
    assert hvd.join() == hvd.size() - 1
    hvd.broadcast_parameters(model.state_dict(), hvd.size() - 1)
    hvd.assert_equal(model)


def refused(kind: type[HvdtrainError], words: str, call: Callable[[], object]) -> None:
    """The call ends with a sentence that contains these words."""
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert words in text, text
    assert "HINT: " in text, text


def after_backward() -> tuple[nn.Module, Any]:
    """A model with gradients that travel, and its optimizer."""
    torch.manual_seed(6)
    model = nn.Linear(4, 2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(2):  # in the first update nothing travels before step()
        optimizer.step() if model.weight.grad is not None else None
        optimizer.zero_grad()
        model(torch.ones(3, 4)).sum().backward()
    return model, optimizer


def gradients_that_travel_are_left_alone() -> None:
    changes: list[Callable[[Any], object]] = [
        lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1e-3),
        lambda model: setattr(model.weight, "grad", model.weight.grad * 0),
        lambda model: setattr(model.bias, "grad", None),
    ]
    for change in changes:
        model, optimizer = after_backward()
        change(model)
        refused(WrongOrderError, "changed after backward()", optimizer.step)


def hooks_and_profilers_are_told() -> None:
    _, optimizer = after_backward()
    told: list[str] = []
    hooks = [optimizer.register_step_pre_hook(lambda *_: told.append("before"))]
    hooks += [optimizer.register_step_post_hook(lambda *_: told.append("after"))]
    optimizer.step()
    assert told == ["before", "after"]
    for hook in hooks:
        hook.remove()
    _, optimizer = after_backward()
    with torch.autograd.profiler.profile() as profile:
        optimizer.step()
        optimizer.zero_grad()
    names = [event.key for event in profile.key_averages()]
    assert [name for name in names if "Optimizer.step#" in name], names
    assert [name for name in names if "Optimizer.zero_grad#" in name], names
    with pytest.MonkeyPatch.context() as patch:  # as tools do that count calls
        patch.setattr(torch.optim.Optimizer, "zero_grad", lambda *_: told.append("cleared"))
        optimizer.zero_grad()
    assert told[2:] == ["cleared"]


def misuse_has_a_sentence() -> None:
    model, rows = nn.Linear(4, 2), torch.ones(3, 4)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(plain)
    refused(WrongOrderError, "no rank has computed a gradient", optimizer.step)
    refused(WrongArgumentError, "is distributed already", lambda: hvd.DistributedOptimizer(optimizer))
    refused(WrongArgumentError, "op='sum' is given", lambda: hvd.DistributedOptimizer(plain, op="sum"))
    refused(WrongArgumentError, "should be a sequence", lambda: hvd.DistributedOptimizer(plain, model))
    others = nn.Linear(4, 2).named_parameters()
    refused(WrongArgumentError, "are not among them", lambda: hvd.DistributedOptimizer(plain, others))
    model, optimizer = after_backward()
    refused(WrongOrderError, "before optimizer.step()", optimizer.zero_grad)
    refused(WrongOrderError, "more often than 1 times", lambda: model(rows).sum().backward())
    model, optimizer = after_backward()
    optimizer.step()
    refused(WrongOrderError, "was copied", lambda: copy.deepcopy(optimizer))
    model.double()
    model(rows.double()).sum().backward()
    refused(WrongOrderError, "dtype or the device", optimizer.step)
    model, optimizer = after_backward()
    optimizer.step()
    hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    refused(WrongOrderError, "Another distributed optimizer", optimizer.step)
    first, second = nn.Linear(4, 2), nn.Linear(4, 2)
    both = [*first.parameters(), *second.parameters()]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(both, lr=0.1), op=hvd.Sum)
    first(rows).sum().backward()
    assert optimizer.param_groups[0]["lr"] == 0.1
    second(rows).sum().backward()
    refused(WrongOrderError, "after optimizer.param_groups had been read", optimizer.step)
    uneven = torch.ones(2 + hvd.rank())
    refused(MismatchedCallError, "Mismatched", lambda: hvd.allreduce(uneven, name="mismatched"))
    different = nn.Linear(4, 2 + hvd.rank())
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(different.parameters(), lr=0.1))
    different(rows).sum().backward()
    refused(MismatchedModelsError, "are not those of the other ranks", optimizer.step)
    unequal = {"weight": torch.full((2,), float(hvd.rank()))}
    ranks = ", ".join(map(str, range(1, hvd.size())))
    refused(DivergenceError, f"rank {ranks} differs", lambda: hvd.assert_equal(unequal))
    refused(HvdtrainError, "has no allredcue", lambda: hvd.allredcue)


def a_mean_counts_samples() -> None:
    mean = hvd.Mean()
    for number in range(hvd.rank() + 1):
        mean.update(torch.tensor(float(number)), weight=number + 1)
    values = [(n, n + 1) for rank in range(hvd.size()) for n in range(rank + 1)]
    assert mean.compute() == sum(v * w for v, w in values) / sum(w for _, w in values)
    mean.reset()
    assert mean.compute() != mean.compute()  # not a number
    mean.update(float("nan"), 0)
    mean.update(torch.tensor(float("nan")), torch.tensor(0))
    mean.update(2.0, hvd.rank() + 1)
    assert mean.compute() == 2.0


class Renamed(nn.BatchNorm1d):
    """With methods of its own, for what hvdtrain knows."""


def batch_norm_sees_all_ranks() -> None:
    torch.manual_seed(4)
    layer = nn.BatchNorm1d(3)
    whole = torch.randn(2 * hvd.size(), 3)
    synchronized = hvd.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm1d(3)))
    part = synchronized(whole[2 * hvd.rank() : 2 * hvd.rank() + 2])
    torch.testing.assert_close(part, layer(whole)[2 * hvd.rank() : 2 * hvd.rank() + 2])
    torch.testing.assert_close(hvd.SyncBatchNorm(3)(whole[2 * hvd.rank() : 2 * hvd.rank() + 2]), part)
    refused(UsageError, "convert_sync_batchnorm", lambda: hvd.SyncBatchNorm.convert_sync_batchnorm(Renamed(3)))
    refused(UsageError, "process_group is a str", lambda: hvd.SyncBatchNorm(3, process_group="all"))


def torchs_own_synchronized_batch_norm_is_refused() -> None:
    """It would be a plain one, as nobody has initialized torch.distributed."""
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    refused(UsageError, "The layer '1' is a torch.nn.SyncBatchNorm", lambda: hvd.DistributedDataParallel(model))
    hvd.DistributedDataParallel(hvd.SyncBatchNorm.convert_sync_batchnorm(model))
    traced = torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2))  # type: ignore[no-untyped-call]
    hvd.DistributedDataParallel(nn.Sequential(traced, nn.Linear(2, 2)))  # whose parts have no forward() as others


def a_training_is_taken_up(folder: str) -> None:
    """That `data_parallel_torch.py` has saved with two ranks."""
    torch.manual_seed(hvd.rank())
    model = Pictures()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    found = hvd.Checkpoint(folder, model=model, optimizer=optimizer).restore()
    assert found.step == 3
    assert found.values["sum"] == float(sum(p.detach().double().sum() for p in model.parameters()))
    assert optimizer.param_groups[0]["lr"] == 0.01
    hvd.assert_equal(model, optimizer)


def a_signal_to_one_rank_stops_all() -> None:
    last = hvd.size() - 1
    for step in range(5000):
        if hvd.stop_requested():
            break
        if step == 5 and hvd.rank() == last:
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.002)
    assert hvd.stop_reason() == f"SIGTERM (rank {last})"
    assert hvd.allgather(torch.tensor([step])).tolist() == [step] * hvd.size()


def different_start_weights_are_told() -> None:
    torch.manual_seed(hvd.rank())
    model = nn.Linear(4, 2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for step in range(2):
        optimizer.zero_grad()
        model(torch.ones(3, 4)).sum().backward()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer.step()
        assert ["begin with different weights" in str(w.message) for w in caught] == [True] * (step == 0), caught


CHECKS: list[Callable[[], None]] = [
    *(many_ranks_train_as_one, two_optimizers_take_turns, a_closure_is_reduced, ranks_with_fewer_batches_join),
    *(ranks_that_read_their_groups_stay_together, a_closure_may_return_bfloat16),
    parameters_that_come_later_train_as_in_one_process,
    *(frozen_layers_rest_until_they_are_unfrozen, a_scheduler_made_before_wrapping_is_followed),
    *(compiled_steps_train_as_others, *SPARSE_CHECKS, *UNUSED_CHECKS, *ELASTIC_CHECKS),
    *(a_scaler_needs_no_synchronize, a_resumed_optimizer_changes_no_weight, different_start_weights_are_told),
    *(gradients_that_travel_are_left_alone, hooks_and_profilers_are_told, misuse_has_a_sentence),
    *(a_mean_counts_samples, batch_norm_sees_all_ranks, torchs_own_synchronized_batch_norm_is_refused),
]


def main() -> None:
    hvd.init(process_sets="dynamic")
    for check in CHECKS:
        check()
    a_training_is_taken_up(sys.argv[1])
    a_signal_to_one_rank_stops_all()
    sys.stdout.write(f"CHECKED rank {hvd.rank()} of {hvd.size()} in {Path(__file__).name}\n")
    hvd.shutdown()


if __name__ == "__main__":
    main()
