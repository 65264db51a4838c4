"""Checks of `loops_torch.py`: what an elastic state keeps, sends, and goes back to."""

from typing import Any

import pytest
import torch
from torch import nn

import hvdtrain.torch as hvd
from hvdtrain.errors import PeerError, UsageError
from hvdtrain.torch import start


def trained(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    """One update, in which all ranks change their weights in the same way; the weights and the momentum after it."""
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    momentum = [state["momentum_buffer"].tolist() for state in optimizer.state.values()]
    return [[parameter.tolist() for parameter in model.parameters()], momentum]


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Built with other weights and another rate on each rank."""
    torch.manual_seed(hvd.rank())
    model = nn.Linear(2, 1)
    return model, torch.optim.SGD(model.parameters(), lr=1.0 + hvd.rank(), momentum=0.9)


def a_worker_goes_back_to_what_it_was_sent() -> None:
    """Before its first own commit: not to what it was built with."""
    model, optimizer = made()
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)
    if hvd.rank() == 0:
        trained(model, optimizer)
        state.step = 1
        state.save()
    state.sync()
    after_next = trained(model, optimizer)
    state.step += 1
    state.restore()
    assert state.step == 1
    assert trained(model, optimizer) == after_next
    hvd.assert_equal(model, optimizer)


def no_half_of_what_was_sent_is_kept() -> None:
    """Where the sending worker is lost in the middle: weights of one state with the step of another one."""
    model, _ = made()
    state = hvd.elastic.TorchState(model=model, step=0)
    before = [parameter.tolist() for parameter in model.parameters()]
    nn.init.ones_(model.weight)
    state._bcast_object = lose_the_sender
    with pytest.raises(PeerError):
        state.sync()
    state.restore()
    assert [parameter.tolist() for parameter in model.parameters()] == before


def schedulers_stay_with_their_optimizers() -> None:
    """Made before or after wrapping: a copy would change the rate of another optimizer, or could not be sent."""
    for is_before in (True, False):
        model, plain = made()
        optimizer = hvd.DistributedOptimizer(plain)
        scheduler = torch.optim.lr_scheduler.StepLR(plain if is_before else optimizer, 1, gamma=0.5)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0 + hvd.rank())  # type: ignore[attr-defined]
        state = hvd.elastic.TorchState(model, optimizer, scheduler=scheduler, scaler=scaler)
        state.sync()
        assert (state.scheduler is scheduler, state.scaler is scaler, scaler.get_scale()) == (True, True, 8.0)
        for rate in (0.5, 0.25):
            state.commit()
            trained(model, optimizer)
            scheduler.step()
            assert optimizer.param_groups[0]["lr"] == rate
        scaler.scale(torch.ones(1))
        scaler.update(16.0)
        state.restore()
        assert (scheduler.last_epoch, scaler.get_scale(), optimizer.param_groups[0]["lr"]) == (1, 8.0, 0.5)
        hvd.assert_equal(model, optimizer)


def a_loss_undoes_what_values_have_got_since_the_commit() -> None:
    """Before the first commit, after one, and after a second loss."""
    losses: list[float] = []
    state = hvd.elastic.TorchState(losses=losses, mean={"weight": torch.zeros(1)}, step=0)
    assert state.losses is losses
    state.sync()
    for losses_before, is_committed in ((0, False), (0, True), (1, False), (1, False)):
        assert (len(state.losses), state.step, state.mean["weight"].item()) == (losses_before,) * 3
        state.losses.append(0.5)
        state.mean["weight"] += 1
        state.step += 1
        if is_committed:
            state.commit()
        state.restore()


def values_that_are_sent_belong_to_the_weights_that_are_sent() -> None:
    """A change of hosts that is met between two commits sends both as they are now."""
    state = hvd.elastic.TorchState(step=0, losses=[])
    if hvd.rank() == 0:
        state.step = 3
        state.losses.append(0.5)
    state.sync()
    assert (state.step, state.losses) == (3, [0.5])


def values_refer_to_the_same_model_after_a_loss() -> None:
    """Copies of it would be trained by nobody. The others keep what they had where the state is sent, as rank 0 has."""
    model, optimizer = made()
    rows = RowsRead()
    state = hvd.elastic.TorchState(
        model, optimizer, used={"model": model, "layer": model.bias, "of": optimizer, "rows": rows}, rows=rows
    )
    for keep in (state.restore, state.save, state.restore, state.sync, state.restore):  # also before the first commit
        keep()
        kept = (model, model.bias, optimizer, rows)
        assert all(mine is theirs for mine, theirs in zip(state.used.values(), kept, strict=True))
    state.rows.numbers.append(7 + hvd.rank())
    loaded = rows.loaded
    state.sync()
    assert state.rows is rows
    assert (rows.numbers, rows.loaded) == ([7], loaded + 1)
    with pytest.raises(UsageError, match="of type NoneType in the place of a RowsRead"):
        state.rows = None


class RowsRead:
    """Gives its own list as its state, and empties it to take another one."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.loaded = 0

    def state_dict(self) -> dict[str, Any]:
        return {"numbers": self.numbers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded += 1
        self.numbers.clear()
        self.numbers.extend(state["numbers"])


def buffers_are_sent_in_the_first_pass_of_a_world() -> None:
    """A worker that joins after a validation has a new wrapper, and the others one that has sent its buffers."""
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    model = hvd.DistributedDataParallel(module)
    with torch.no_grad():
        model(torch.ones(4, 2))
    start._starts[0] += 1  # as after a change of workers, on all ranks
    if hvd.rank() == hvd.size() - 1:
        model = hvd.DistributedDataParallel(module, init_sync=False)
    model(torch.ones(4, 2) * hvd.rank()).sum().backward()
    with torch.no_grad():
        model(torch.ones(4, 2))
    hvd.assert_equal(dict(module.named_parameters()))


def a_value_that_cannot_be_kept_is_named() -> None:
    with pytest.raises(UsageError, match="The value loss of the elastic state, of type Tensor, cannot be copied"):
        hvd.elastic.TorchState(loss=torch.ones(1, requires_grad=True).sum())


def lose_the_sender(values: object) -> object:  # noqa: ARG001
    raise PeerError("Rank 0 has ended.", "The others wait for its values.", "none")


ELASTIC_CHECKS = (
    *(a_worker_goes_back_to_what_it_was_sent, no_half_of_what_was_sent_is_kept),
    *(schedulers_stay_with_their_optimizers, a_loss_undoes_what_values_have_got_since_the_commit),
    *(values_refer_to_the_same_model_after_a_loss, buffers_are_sent_in_the_first_pass_of_a_world),
    *(values_that_are_sent_belong_to_the_weights_that_are_sent, a_value_that_cannot_be_kept_is_named),
)
