"""Torch models and optimizers that keep something unusual in their state, of which `state_rows` makes rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from hvdtrain.engine import events
from support.numpy_training import CLASSES, WIDTH
from support.torch_training import TorchRows


class Holder(nn.Module):
    """A small network beside what `fill` puts into it, which `change` changes in each training step."""

    def __init__(self, fill: Callable[[Holder], None], change: Callable[[Holder], None] = lambda _: None) -> None:
        super().__init__()
        self.hidden = nn.Linear(WIDTH, 6)
        self.norm = nn.BatchNorm1d(6)
        self.last = nn.Linear(6, CLASSES)
        self.kept: Any = None
        self._change = change
        fill(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                self._change(self)
        x = x.to(self.last.weight.dtype)
        result: torch.Tensor = self.last(torch.tanh(self.norm(self.hidden(x)))) * self.factor()
        return result

    def factor(self) -> float | torch.Tensor:
        """What makes the loss depend on the unusual part, so that losing it would change all weights."""
        return 1.0


class Row(TorchRows):
    """A task with one of the models, and an optimizer of it."""

    def __init__(
        self,
        model: Callable[[], nn.Module],
        optimizer: Callable[[Any, float], torch.optim.Optimizer] = lambda weights, lr: torch.optim.SGD(
            weights, lr=lr, momentum=0.9
        ),
    ) -> None:
        super().__init__()
        self._model, self._optimizer_of = model, optimizer

    def build_model(self) -> nn.Module:
        return self._model()

    def build_optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        return self._optimizer_of(model.parameters(), lr)

    def measure(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        loss = functional.cross_entropy(model(batch["x"]).float(), batch["label"], reduction="none")
        return {"loss": loss}


def with_buffers(make: Callable[[], list[torch.Tensor]], change: Callable[[torch.Tensor], torch.Tensor]) -> Row:
    """Buffers that each step replaces by what `change` makes of them."""

    def fill(holder: Holder) -> None:
        for number, buffer in enumerate(make()):
            holder.register_buffer(f"held{number}", buffer)

    def step(holder: Holder) -> None:
        for name, buffer in [*holder.named_buffers(recurse=False)]:
            setattr(holder, name, change(buffer))

    return Row(lambda: Holder(fill, step))


class Extra(Holder):
    """Keeps Python values beside its tensors, as torch's `get_extra_state` lets it."""

    def __init__(self, first: Any, change: Callable[[Any], Any]) -> None:
        def step(holder: Holder) -> None:
            holder.kept = change(holder.kept)

        super().__init__(lambda _: None, step)
        self.kept = first

    def get_extra_state(self) -> Any:
        return self.kept

    def set_extra_state(self, state: Any) -> None:
        self.kept = state


class Kept:
    """An object that is neither tensor nor number."""


class Numbers(torch.optim.SGD):
    """Multiplies its gradients by what it keeps outside of parameters' slots, in every place that an optimizer has."""

    def __init__(self, weights: Any, lr: float) -> None:
        super().__init__(weights, lr=lr, momentum=0.5)
        self.k, self.past, self.mean = 0, deque([1.0], maxlen=3), torch.zeros(2)
        self.param_groups[0].update(d=1e-3, name="slow", pair=(0, 1.0))

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        group = self.param_groups[0]
        self.k += 1
        self.past.append(self.past[-1] / 2)
        self.mean = self.mean + 0.5
        group["d"] = group["d"] * 3
        group["name"] = "fast" if self.k > 2 else "slow"
        group["pair"] = (group["pair"][0] + 1, group["pair"][1] / 2)
        group["momentum"] = 0.5 + self.k / 20
        group["first seen"] = group.get("first seen", 0.0) + 1.0  # type: ignore[operator]
        shared = self.state.setdefault("all", {"count": 0, "sum": torch.zeros(1)})  # type: ignore[call-overload]
        shared["count"] += 1
        shared["sum"] = shared["sum"] + group["d"]
        factor = group["d"] * self.k + sum(self.past) + float(self.mean.sum() + shared["sum"]) + group["pair"][1]
        factor += 0.1 * (group["name"] == "fast") + shared["count"] + group["first seen"]
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad.mul_(factor / 10)
        super().step(closure)


class Begun(torch.optim.SGD):
    """Keeps numbers under names in `state` from its construction on: some change, and its step needs all of them."""

    def __init__(self, weights: Any, lr: float) -> None:
        super().__init__(weights, lr=lr)
        named: dict[Any, Any] = self.state
        named["global"] = {"n": 0}
        named["fixed"] = {"factor": 0.5}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        named: dict[Any, Any] = self.state
        named["global"]["n"] += 1
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                parameter.grad.mul_(named["fixed"]["factor"] / named["global"]["n"])
        super().step(closure)


class Slots(torch.optim.SGD):
    """Keeps slots of several dtypes, and values in Python, for each parameter; `bad` is what cannot be saved."""

    bad: Callable[[], Any] | None = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            slots = self.state[parameter]
            if not slots:
                slots.update(half=torch.zeros_like(parameter, dtype=torch.bfloat16), count=torch.tensor(0))
                slots.update(bits=torch.zeros(3, dtype=torch.uint8), past=[], pair=(0, "a"), none=None)
            slots["half"] = (slots["half"].float() * 0.9 + parameter.grad).bfloat16()
            slots["count"] += 1
            slots["bits"] += 1
            slots["past"] = [*slots["past"], float(slots["count"])]
            slots["pair"] = (slots["pair"][0] + 1, "b")
            assert slots["none"] is None
            if self.bad is not None:
                slots["bad"] = self.bad()
            parameter.grad.copy_(slots["half"].float() / (len(slots["past"]) + slots["pair"][0] + slots["count"]))
        super().step(closure)


class MovingMomentum(Row):
    """Its `callback` sets the optimizer's momentum after each step."""

    def __init__(self) -> None:
        super().__init__(lambda: Holder(lambda _: None))

    def build_optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        self._built = super().build_optimizer(model, lr)
        return self._built

    def callback(self, event: events.Event) -> None:
        if isinstance(event, events.StepEnded):
            self._built.param_groups[0]["momentum"] = 1 - 1 / (1 + event.step)


def refused_slots(make: Callable[[], Any]) -> Callable[[Any, float], torch.optim.Optimizer]:
    def build(weights: Any, lr: float) -> torch.optim.Optimizer:
        optimizer = Slots(weights, lr=lr)
        optimizer.bad = make
        return optimizer

    return build


class Wrapping(torch.optim.SGD):
    """Keeps another optimizer in an attribute."""

    def __init__(self, weights: Any, lr: float) -> None:
        weights = list(weights)
        super().__init__(weights, lr=lr)
        self.inner = torch.optim.Adam(weights, lr=lr)


class Drawing(torch.optim.SGD):
    """Keeps a generator of random numbers in a group."""

    def __init__(self, weights: Any, lr: float) -> None:
        super().__init__(weights, lr=lr)
        self.param_groups[0]["draws"] = torch.Generator()


class Growing(Holder):
    """Concatenates to a buffer in each step, and makes another one only then."""

    def __init__(self) -> None:
        def fill(holder: Holder) -> None:
            holder.register_buffer("bank", torch.zeros(0, 2))
            holder.register_buffer("later", None)

        def step(holder: Holder) -> None:
            holder.bank = torch.cat([holder.bank, torch.full((1, 2), float(len(holder.bank)))])  # type: ignore[arg-type]
            holder.later = torch.ones(2) if holder.later is None else holder.later + 1

        super().__init__(fill, step)

    def factor(self) -> torch.Tensor:
        return 1 + self.bank.sum() / 10 + (0 if self.later is None else self.later.sum() / 10)  # type: ignore[operator]
