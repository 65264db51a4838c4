"""Checks of `loops_torch.py`: what a loop changes after it has wrapped a model or an optimizer."""

import warnings
from typing import Any

import torch
from torch import nn

import hvdtrain.torch as hvd


def compiled_steps_train_as_others() -> None:
    """All of a step is compiled, or its end: the wrappers' own parts are left as they are, and ranks stay equal."""
    for wrap in (None, hvd.DistributedDataParallel):
        trained = []
        for compiled in ("", "step", "optimizer.step"):
            torch.manual_seed(12)
            model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
            run = wrap(model) if wrap is not None else model
            optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
            if wrap is None:
                optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
            end = torch.compile(optimizer.step, backend="eager") if compiled == "optimizer.step" else optimizer.step

            def step(rows: torch.Tensor, run: Any = run, optimizer: Any = optimizer, end: Any = end) -> None:
                optimizer.zero_grad()
                run(rows).square().mean().backward()
                end()

            update = torch.compile(step, backend="eager") if compiled == "step" else step
            draws = torch.Generator().manual_seed(hvd.rank())
            for _ in range(4):
                update(torch.randn(6, 4, generator=draws))
            hvd.assert_equal(dict(model.named_parameters()))
            trained.append(model[0].weight.detach())
        torch.testing.assert_close(trained[1:], [trained[0]] * 2)


def two_optimizers_take_turns() -> None:
    """As a GAN does: the one's model is frozen while the other's is trained, and layers are added later."""
    torch.manual_seed(5)
    maker, critic = nn.Linear(6, 6), nn.Linear(6, 1)
    of_maker = hvd.DistributedOptimizer(torch.optim.Adam(maker.parameters()))
    of_critic = hvd.DistributedOptimizer(torch.optim.Adam(critic.parameters()), critic.named_parameters())
    late = nn.Linear(6, 6)
    for step in range(6):
        noise = torch.randn(5, 6, generator=torch.Generator().manual_seed(10 * step + hvd.rank()))
        of_critic.zero_grad()
        critic(maker(noise).detach()).mean().backward()
        of_critic.step()
        critic.requires_grad_(False)
        of_maker.zero_grad()
        critic(late(maker(noise)) if step > 2 else maker(noise)).square().mean().backward()
        of_maker.step()
        critic.requires_grad_(True)
        if step == 2:
            of_maker.add_param_group({"params": list(late.parameters())})
        hvd.assert_equal(maker, critic, late)


def parameters_that_come_later_train_as_in_one_process() -> None:
    """Added to the optimizer, or frozen at first: no gradient is summed twice in the update in which they come."""
    for op in (hvd.Average, hvd.Sum):
        for comes in ("added", "unfrozen", "alone"):
            trained, expected = (_train_with_late_parameters(op, comes, distributed) for distributed in (True, False))
            hvd.assert_equal(trained)
            for name, weight in expected.named_parameters():
                torch.testing.assert_close(trained.get_parameter(name), weight, msg=f"{op}, {comes}: {name} is another")


def _train_with_late_parameters(op: Any, comes: str, distributed: bool) -> nn.Module:
    torch.manual_seed(8)
    model = nn.Sequential(nn.Linear(6, 500), nn.Tanh(), nn.Linear(500, 700), nn.Tanh(), nn.Linear(700, 2))
    head, late = model[4], [*model[0].parameters(), *model[2].parameters()]  # below and above 1 MiB
    for parameter in late:
        parameter.requires_grad_(comes == "added")
    optimizer: Any = torch.optim.SGD(head.parameters() if comes == "added" else model.parameters(), 0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, op=op) if distributed else optimizer
    for step in range(6):
        if step == 3:
            optimizer.add_param_group({"params": late}) if comes == "added" else model.requires_grad_(True)
            head.requires_grad_(comes != "alone")
        model.zero_grad()
        draws = [torch.Generator().manual_seed(100 * step + rank) for rank in range(hvd.size())]
        rows = [torch.randn(5, 6, generator=each) for each in draws]
        losses = [model(part).sin().mean() for part in ([rows[hvd.rank()]] if distributed else rows)]
        (sum(losses) / (1 if distributed or op == hvd.Sum else hvd.size())).backward()
        optimizer.step()
    return model


def ranks_that_read_their_groups_stay_together() -> None:
    """Between backward() and synchronize(), on one rank or on all; what is read reduces the gradients."""
    for op in (hvd.Average, hvd.Sum):
        trained = []
        for readers in ((), (0,), range(hvd.size())):
            torch.manual_seed(6)
            model = nn.Sequential(nn.Linear(6, 500), nn.Linear(500, 700), nn.Linear(700, 2))  # below and above 1 MiB
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), op=op)
            draws = torch.Generator().manual_seed(hvd.rank())
            for step in range(6):
                optimizer.zero_grad()
                model(torch.randn(5, 6, generator=draws)).square().mean().backward()
                if hvd.rank() in readers and step % 2:
                    assert optimizer.param_groups[0]["lr"] == 0.01
                optimizer.synchronize()
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                with optimizer.skip_synchronize():
                    optimizer.step()
            hvd.assert_equal(model)
            trained.append(model[1].weight.detach())
        assert all(torch.equal(trained[0], other) for other in trained[1:])


def frozen_layers_rest_until_they_are_unfrozen() -> None:
    """Also those that are frozen between wrapping and the first update, in both wrappers."""
    for wrap in (hvd.DistributedDataParallel, nn.Sequential):
        torch.manual_seed(hvd.rank())
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
        wrapped = wrap(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
        if wrap is nn.Sequential:
            optimizer = hvd.DistributedOptimizer(optimizer)
            hvd.broadcast_parameters(model.state_dict(), 0)
        start = model[0].weight.detach().clone()
        for step in range(4):
            model[0].requires_grad_(step >= 2)
            optimizer.zero_grad()
            wrapped(torch.randn(5, 3)).square().sum().backward()
            optimizer.step()
            assert torch.equal(start, model[0].weight) == (step < 2)
        hvd.assert_equal(model)


def a_scheduler_made_before_wrapping_is_followed() -> None:
    """Also after `load_state_dict`, which in torch puts other groups into the optimizer."""
    torch.manual_seed(11)
    model = nn.Linear(2, 2)
    plain = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.ExponentialLR(plain, 0.5)
    optimizer = hvd.DistributedOptimizer(plain)
    optimizer.load_state_dict(optimizer.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for lr in (1.0, 0.5, 0.25):
            assert optimizer.param_groups[0]["lr"] == lr
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()


def resumed_by_the_first_rank(model: nn.Module, rows: torch.Tensor) -> torch.optim.Optimizer:
    """An optimizer that has state and another rate where a checkpoint was loaded, on rank 0."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5, weight_decay=0.1)
    if hvd.rank() == 0:
        model(rows).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        optimizer.param_groups[0]["lr"] = 0.25
    return hvd.DistributedOptimizer(optimizer)


def a_resumed_optimizer_changes_no_weight() -> None:
    rows = torch.ones(1, 3, 3, 3)
    for dtype in (torch.float32, torch.bfloat16):
        for sync in (sync_by_functions, lambda model, its: hvd.elastic.TorchState(model, its, step=0).sync()):
            torch.manual_seed(9)
            model: nn.Module = nn.Conv2d(3, 2, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            model.to(dtype)
            optimizer = resumed_by_the_first_rank(model, rows.to(dtype))
            before = hvd.broadcast_object([p.tolist() for p in model.parameters()], 0)
            sync(model, optimizer)
            assert [p.tolist() for p in model.parameters()] == before
            assert optimizer.param_groups[0]["lr"] == 0.25
            assert [float(state["step"]) for state in optimizer.state.values()] == [1.0, 1.0]
            hvd.assert_equal(model, optimizer)


def sync_by_functions(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    hvd.broadcast_parameters(model.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)


def a_closure_may_return_bfloat16() -> None:
    torch.manual_seed(12)
    model = nn.Linear(2, 1).bfloat16()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    def closure() -> torch.Tensor:
        loss = model(torch.ones(1, 2).bfloat16()).sum() * 0 + hvd.rank()
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    assert (loss.dtype, float(loss)) == (torch.bfloat16, (hvd.size() - 1) / 2)
