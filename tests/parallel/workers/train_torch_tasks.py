"""The digits in torch, with a fault on one rank, or with data that differ between ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import nn
from train_fault import fail, strikes

from hvdtrain.task import Features, Splits
from hvdtrain.tasks.digits.torch import TorchDigits
from hvdtrain.topology import detect_topology

fail("import")


class Faulty(TorchDigits):
    """Fails as TRAIN_FAULT says; "nan" in measure makes one rank's losses not a number."""

    def open_data(self, data_dir: Path | None, cache_dir: Path) -> Splits:
        fail("open_data")
        return super().open_data(data_dir, cache_dir)

    def decode(self, records: Sequence[bytes]) -> Features:
        fail("decode")
        return super().decode(records)

    def build_model(self) -> nn.Module:
        fail("build_model")
        return super().build_model()

    def measure(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        fail("measure")
        measures = super().measure(model, batch)
        if strikes("loss") == "nan":
            measures["loss"] = measures["loss"] * torch.nan
        return measures


class OwnFolder(TorchDigits):
    """Each rank reads `--data.dir`/rank_N, as hosts with disks of their own do."""

    def open_data(self, data_dir: Path | None, cache_dir: Path) -> Splits:
        if data_dir is None:
            raise ValueError("the test gives --data.dir")
        return super().open_data(data_dir / f"rank_{detect_topology(os.environ).rank}", cache_dir)
