"""Tasks for torch, one for each row of docs/state.md: what is saved, what is refused, what differs between ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from support.numpy_training import CLASSES, WIDTH
from support.state_models import (
    Begun,
    Drawing,
    Extra,
    Growing,
    Holder,
    Kept,
    Numbers,
    Row,
    Slots,
    Wrapping,
    refused_slots,
    with_buffers,
)


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
    "numbers that the optimizer has at its start": lambda: Row(lambda: Holder(lambda _: None), Begun),
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
    "lazy weights": (lambda: Row(lambda: nn.Sequential(nn.LazyLinear(CLASSES))), "The lazy layer '0' of"),
    "lazy buffers": (
        lambda: Row(lambda: nn.Sequential(nn.Linear(WIDTH, CLASSES), nn.LazyBatchNorm1d(affine=False))),
        "The lazy layer '1' of",
    ),
    "extra state of objects": (
        lambda: Row(lambda: Extra(Kept(), lambda kept: kept)),
        "model itself returned an instance of Kept",
    ),
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
