"""`op=hvd.Adasum` on several ranks over MPI: weights equal those of Horovod's own optimizer, and what is refused.

Each check is run in the order of the file; the last line says that this rank has passed all.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import horovod.torch
import pytest
import torch
from torch import nn

import hvdtrain.torch as hvd
from hvdtrain.errors import HvdtrainError
from hvdtrain.torch.adasum_optimizer import combines_steps
from hvdtrain.torch.collectives import LostPeerError
from hvdtrain.torch.loop_gradients import WrongOrderError
from hvdtrain.torch.optimizer_arguments import WrongArgumentError

UPDATES = 6
FIRST = hvd.ProcessSet([0])
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=0.01, nesterov=True),
    "Adam": lambda groups: torch.optim.Adam(groups, lr=0.01),
}
CASES: list[dict[str, Any]] = [
    {},
    {"backward_passes_per_step": 2},
    {"compression": hvd.Compression.fp16},
    {"backward_passes_per_step": 2, "groups": 2},
]


class Pictures(nn.Module):
    """Gradients below and above 1 MiB, a layer that is never used, and one that only rank 0 uses."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.large = nn.Linear(288, 1200)
        self.unused = nn.Linear(4, 4)
        self.of_rank_0 = nn.Linear(5, 5)
        self.last = nn.Linear(1200, 5)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(torch.relu(self.large(torch.relu(self.conv(pictures)).flatten(1))))
        return result if hvd.rank() else self.of_rank_0(result)


def model() -> Pictures:
    """The same one on all ranks."""
    torch.manual_seed(3)
    return Pictures().double()


def groups_of(of: nn.Module) -> list[dict[str, Any]]:
    """Two groups, each with parameters that are elsewhere in the model."""
    parameters = list(of.parameters())
    return [{"params": parameters[::2]}, {"params": parameters[1::2], "lr": 0.02}]


def trained(
    distributed: Callable[..., Any], make: Callable[[Any], torch.optim.Optimizer], case: dict[str, Any]
) -> Pictures:
    """The model after some updates with this rank's own samples."""
    ours, passes = model(), case.get("backward_passes_per_step", 1)
    if distributed is hvd.DistributedOptimizer:  # Horovod's refuses other layouts
        ours.conv.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = distributed(make(groups_of(ours)), ours.named_parameters(), op=hvd.Adasum, **case)
    assert combines_steps(optimizer) or distributed is not hvd.DistributedOptimizer
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    generator = torch.Generator().manual_seed(hvd.rank())
    for _ in range(UPDATES):
        optimizer.zero_grad()
        for _ in range(passes):
            ours(torch.randn(4, 3, 8, 8, generator=generator, dtype=torch.float64)).square().mean().backward()
        optimizer.step()
        schedule.step()
    return ours


def weights_are_horovods() -> None:
    for make in OPTIMIZERS.values():
        for case in CASES:
            upstreams = {name: value for name, value in case.items() if name != "groups"}
            theirs = trained(horovod.torch.DistributedOptimizer, make, upstreams)
            ours = trained(hvd.DistributedOptimizer, make, case)
            hvd.assert_equal(ours)
            tolerance = 1e-3 if "compression" in case else 1e-9
            for name, value in theirs.state_dict().items():
                torch.testing.assert_close(ours.state_dict()[name], value, rtol=tolerance, atol=tolerance)
            assert not torch.equal(ours.last.weight, model().last.weight)
            assert not torch.equal(ours.of_rank_0.weight, model().of_rank_0.weight)


def layer() -> tuple[nn.Linear, Any]:
    """The same one on all ranks, and its optimizer."""
    ours = nn.Linear(4, 2)
    hvd.broadcast_parameters(ours.state_dict(), 0)
    return ours, hvd.DistributedOptimizer(torch.optim.SGD(ours.parameters(), lr=0.1), op=hvd.Adasum)


def gradients_may_be_clipped_before_the_step() -> None:
    """Each rank's own, from the first update on; the weights stay as they were until the step."""
    ours, optimizer = layer()
    for _ in range(3):
        before = copy.deepcopy(ours)
        optimizer.zero_grad()
        ours(torch.ones(3, 4)).sum().backward()
        nn.utils.clip_grad_norm_(ours.parameters(), 1.0)
        assert torch.equal(ours.weight, before.weight)
        optimizer.step()
        # All ranks have the same samples here, and Adasum leaves equal steps as they are.
        moves = [new - old for new, old in zip(ours.parameters(), before.parameters(), strict=True)]
        assert float(nn.utils.get_total_norm(moves)) == pytest.approx(0.1, rel=1e-3)


def bfloat16_is_combined() -> None:
    ours = nn.Linear(4, 2).to(torch.bfloat16)
    hvd.broadcast_parameters(ours.state_dict(), 0)
    before = ours.weight.detach().clone()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(ours.parameters(), lr=0.5), op=hvd.Adasum)
    ours(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    torch.testing.assert_close(ours.weight.detach(), before - 0.5)


def refused(kind: type[BaseException], words: str, call: Callable[[], object]) -> None:
    """The call ends with a sentence that contains these words."""
    with pytest.raises(kind) as caught:
        call()
    assert isinstance(caught.value, HvdtrainError)
    assert words in str(caught.value), caught.value
    assert "HINT: " in str(caught.value)


def after_backward() -> tuple[nn.Linear, Any]:
    """A layer whose second gradients are used already."""
    ours, optimizer = layer()
    for update in range(2):
        optimizer.zero_grad()
        ours(torch.ones(3, 4)).sum().backward()
        if update == 0:
            optimizer.step()
    return ours, optimizer


def misuse_has_a_sentence() -> None:
    _, optimizer = layer()
    refused(WrongOrderError, "no rank has computed a gradient", optimizer.step)
    refused(AssertionError, "Skipping synchronization is not supported", optimizer.skip_synchronize)
    ours, optimizer = after_backward()
    refused(WrongOrderError, "before optimizer.step()", optimizer.zero_grad)
    refused(WrongOrderError, "more often than 1 times", lambda: ours(torch.ones(3, 4)).sum().backward())
    ours, optimizer = after_backward()
    nn.utils.clip_grad_norm_(ours.parameters(), 1e-3)
    refused(WrongOrderError, "changed after backward() and before step()", optimizer.step)
    other = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    refused(
        NotImplementedError,
        "with a process set",
        lambda: hvd.DistributedOptimizer(other, op=hvd.Adasum, process_set=FIRST),
    )
    refused(
        WrongArgumentError,
        "op is not Average",
        lambda: hvd.DistributedOptimizer(other, op=hvd.Adasum, gradient_predivide_factor=2.0),
    )


def a_tiny_step_of_one_rank_is_one() -> None:
    """float16 rounds it to -0.0, by which ranks without a gradient tell that nobody has one."""
    weight = nn.Parameter(torch.zeros(2))
    sgd = torch.optim.SGD([weight], lr=1.0)
    optimizer = hvd.DistributedOptimizer(sgd, compression=hvd.Compression.fp16, op=hvd.Adasum)
    if hvd.rank() == 0:
        (weight * torch.tensor([2.0**-26, 1.0])).sum().backward()
    optimizer.step()
    assert weight.tolist() == [0.0, -1.0]


def a_late_rank_is_named() -> None:
    ours, optimizer = layer()
    ours(torch.ones(3, 4)).sum().backward()
    told = Path(sys.argv[1]) / "told"
    if hvd.rank() == 1:
        while not told.exists():
            time.sleep(0.05)
        return
    with pytest.raises(LostPeerError, match="rank 1 did not submit"):
        optimizer.step()
    told.touch()


CHECKS = [
    *(weights_are_horovods, gradients_may_be_clipped_before_the_step, bfloat16_is_combined, misuse_has_a_sentence),
    *(a_tiny_step_of_one_rank_is_one, a_late_rank_is_named),
]


def main() -> None:
    hvd.init(process_sets=[FIRST])
    for check in CHECKS:
        check()
    sys.stdout.write(f"CHECKED rank {hvd.rank()} of {hvd.size()}\n")


if __name__ == "__main__":
    main()
