"""Torch models and optimizers that keep something unusual in their state: one for each row of docs/state.md."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import torch
from numpy_training import CLASSES, WIDTH
from torch import nn
from torch.nn import functional
from torch.testing._internal.two_tensor import TwoTensor
from torch_training import TorchRows

from hvdtrain.engine import events


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


def _halved(held: torch.Tensor) -> torch.Tensor:
    return (held.to(torch.complex64 if held.is_complex() else torch.float32) * 0.5).to(held.dtype)


def _counted(held: torch.Tensor) -> torch.Tensor:
    return (held.to(torch.int64) + 1).to(held.dtype)


def _weights(change: Callable[[Holder], None]) -> Row:
    return Row(lambda: Holder(change))


def _freeze_half(holder: Holder) -> None:
    holder.hidden.to(torch.bfloat16).requires_grad_(False)
    holder.hidden.register_forward_pre_hook(lambda _, args: (args[0].bfloat16(),))
    holder.hidden.register_forward_hook(lambda _m, _args, output: output.float())


def _share(holder: Holder) -> None:
    holder.other = nn.Parameter(holder.last.weight.data)  # another parameter in the same memory
    holder.register_buffer("first_row", holder.hidden.weight.detach()[0])


def _tie(holder: Holder) -> None:
    holder.again = holder.last


def _transpose(holder: Holder) -> None:
    holder.hidden.weight = nn.Parameter(holder.hidden.weight.detach().T.contiguous().T)
    holder.register_buffer("held", torch.arange(12.0).reshape(3, 4).T[::2])


def _empty(holder: Holder) -> None:
    holder.nothing = nn.Parameter(torch.zeros(0, 3))
    holder.register_buffer("held", torch.zeros(2, 0, dtype=torch.int64))


def _scalar(holder: Holder) -> None:
    holder.scale = nn.Parameter(torch.tensor(1.5))
    holder.factor = lambda: holder.scale  # type: ignore[method-assign]


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


FLOAT8 = [name for name in dir(torch) if name.startswith("float8_") and isinstance(getattr(torch, name), torch.dtype)]
FLOATS = ["float16", "float32", "float64", "bfloat16", "complex32", "complex64", "complex128", *FLOAT8]
INTEGERS = ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]

SAVED: dict[str, Callable[[], Row]] = {
    "buffers of every floating and complex type": lambda: with_buffers(
        lambda: [torch.tensor([0.5, 1.0, 2.0]).to(getattr(torch, name)) for name in FLOATS], _halved
    ),
    "buffers of integers and bools": lambda: with_buffers(
        lambda: [torch.zeros(3).to(getattr(torch, name)) for name in INTEGERS], _counted
    ),
    "weights of float16": lambda: Row(lambda: Holder(lambda _: None).half(), _plain_sgd),
    "weights of float64": lambda: Row(lambda: Holder(lambda _: None).double()),
    "frozen weights of bfloat16": lambda: _weights(_freeze_half),
    "frozen weights of complex64": lambda: _weights(
        lambda holder: holder.register_parameter("wave", nn.Parameter(torch.ones(2, dtype=torch.cfloat), False))
    ),
    "tied weights": lambda: _weights(_tie),
    "weights and buffers in shared memory": lambda: _weights(_share),
    "not contiguous": lambda: _weights(_transpose),
    "weights without a part in the loss": lambda: _weights(
        lambda holder: holder.register_parameter("idle", nn.Parameter(torch.ones(2)))
    ),
    "no elements": lambda: _weights(_empty),
    "no dimensions": lambda: _weights(_scalar),
    "extra state of tensors": lambda: Row(lambda: Extra(torch.zeros(2), lambda kept: kept + 1)),
    "extra state of values": lambda: Row(
        lambda: Extra({"n": 0, "of": (torch.zeros(1), b"x")}, lambda k: {"n": k["n"] + 1, "of": (k["of"][0] + 1, b"y")})
    ),
    "buffers that change their size": lambda: Row(Growing),
    "a buffer that changes its type": lambda: with_buffers(lambda: [torch.tensor(0)], lambda held: held + 0.5),
    "numbers of the optimizer": lambda: Row(lambda: Holder(lambda _: None), Numbers),
    "slots of the optimizer": lambda: Row(lambda: Holder(lambda _: None), Slots),
}


def _plain_sgd(weights: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=lr / 10)


def _quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8)


def _buffer(make: Callable[[], torch.Tensor]) -> Callable[[], Row]:
    return lambda: with_buffers(lambda: [make()], lambda held: held)


REFUSED: dict[str, tuple[Callable[[], Row], str]] = {
    "weights of bfloat16": (lambda: _weights(lambda holder: holder.hidden.bfloat16()), "'hidden.weight' is torch.bf"),
    "weights of float8": (
        lambda: _weights(
            lambda holder: holder.register_parameter("w", nn.Parameter(torch.ones(2).to(torch.float8_e4m3fn)))
        ),
        "'w' is torch.float8_e4m3fn",
    ),
    "weights of complex64": (
        lambda: _weights(lambda holder: holder.register_parameter("w", nn.Parameter(torch.ones(2).cfloat()))),
        "'w' is torch.complex64",
    ),
    "a sparse buffer": (_buffer(lambda: torch.eye(2).to_sparse()), "'held0' is sparse"),
    "a compressed sparse buffer": (_buffer(lambda: torch.eye(2).to_sparse_csr()), "'held0' is sparse"),
    "a quantized buffer": (_buffer(_quantized), "'held0' is quantized"),
    "a buffer without numbers": (_buffer(lambda: torch.ones(2, device="meta")), "'held0' is on the device 'meta'"),
    "an expanded buffer": (_buffer(lambda: torch.ones(1).expand(3)), "'held0' has one number in memory"),
    "a nested buffer": (
        _buffer(lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])),
        "'held0' is nested",
    ),
    "a buffer made of two": (_buffer(lambda: TwoTensor(torch.ones(2), torch.ones(2))), "'held0' is a TwoTensor"),
    "a buffer of uint4": (_buffer(lambda: torch.empty(2, dtype=torch.uint4)), "'held0' is torch.uint4"),
    "lazy weights": (lambda: Row(lambda: nn.Sequential(nn.LazyLinear(CLASSES))), "lazy layers"),
    "lazy buffers": (
        lambda: Row(lambda: nn.Sequential(nn.Linear(WIDTH, CLASSES), nn.LazyBatchNorm1d(affine=False))),
        "lazy layers",
    ),
    "extra state of objects": (lambda: Row(lambda: Extra(Kept(), lambda kept: kept)), "returned an instance of Kept"),
    "an optimizer in an optimizer": (
        lambda: Row(lambda: Holder(lambda _: None), Wrapping),
        "Adam in the attribute 'inner'",
    ),
}

REFUSED["a generator in an optimizer"] = (
    lambda: Row(lambda: Holder(lambda _: None), Drawing),
    "Generator in 'draws' of parameter group 0",
)

REFUSED_AFTER_ONE_STEP: dict[str, tuple[Callable[[], Row], str]] = {
    "an object in a slot": (
        lambda: Row(lambda: Holder(lambda _: None), refused_slots(Kept)),
        "Slots keeps 'bad' as an instance of Kept",
    ),
    "a sparse slot": (
        lambda: Row(lambda: Holder(lambda _: None), refused_slots(lambda: torch.eye(2).to_sparse())),
        "'bad' is sparse",
    ),
}


def _differing(rank: int) -> Row:
    """Buffers of several types that each rank changes in its own way."""

    def make() -> list[torch.Tensor]:
        floats = [torch.ones(2).to(dtype) for dtype in (torch.float32, torch.bfloat16, torch.complex64)]
        return [*floats, torch.zeros(2, dtype=torch.int64), torch.tensor(False), torch.zeros(2).to(torch.float8_e5m2)]

    def change(held: torch.Tensor) -> torch.Tensor:
        if held.dtype is torch.bool:
            return torch.tensor(rank == 1)
        wide = held.to(torch.complex64 if held.is_complex() else torch.float32)
        return (wide + rank + 1).to(held.dtype)

    return with_buffers(make, change)


ROWS_OF_RANKS: dict[str, Callable[[int], Row]] = {
    "buffers that differ": _differing,
    "extra state that differs": lambda rank: Row(lambda: Extra((0, "x"), lambda kept: (kept[0] + 1, f"of {rank}"))),
    **{
        row: lambda _, row=row: SAVED[row]()  # type: ignore[misc]
        for row in (
            "frozen weights of bfloat16",
            "no elements",
            "no dimensions",
            "buffers that change their size",
            "numbers of the optimizer",
            "slots of the optimizer",
        )
    },
}
"""By rank: rows where it matters that there are several."""
