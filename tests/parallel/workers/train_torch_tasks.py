"""The digits in torch with something added: a fault on one rank, data of each rank's own, weights written out."""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn
from train_fault import fail, fail_in_average, slow, slow_disk, strikes

from data_sharding import RecordBatch
from hvdtrain.task.data_access import DataAccess
from hvdtrain.task.splits import Splits
from hvdtrain.task.task import Features
from hvdtrain.tasks.torch import TorchDigits
from hvdtrain.topology import detect_topology

fail("import")
slow_disk()


class Faulty(TorchDigits):
    """Fails as TRAIN_FAULT says; "nan" in measure makes one rank's losses not a number."""

    def open_data(self, data: DataAccess) -> Splits:
        fail("open_data")
        slow("open_data")
        return super().open_data(data)

    def decode(self, records: RecordBatch) -> Features:
        fail("decode")
        slow("decode")
        return super().decode(records)

    def build_model(self) -> nn.Module:
        fail("build_model")
        if detect_topology(os.environ).is_distributed:
            import horovod.torch as hvd

            fail_in_average(hvd, "allreduce_async_")
        return super().build_model()

    def measure(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        fail("measure")
        measures = super().measure(model, batch)
        if strikes("loss") == "nan":
            measures["loss"] = measures["loss"] * torch.nan
        return measures


class Mismatched(TorchDigits):
    """One rank calls a collective that the others do not."""

    def measure(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if strikes("collective") == "other":
            import horovod.torch as hvd

            hvd.allreduce(torch.ones(1), name="only_here")
        return super().measure(model, batch)


class OwnFolder(TorchDigits):
    """Each rank reads `--data.dir`/rank_N, as hosts with disks of their own do."""

    def open_data(self, data: DataAccess) -> Splits:
        return super().open_data(replace(data, dir=data.path(f"rank_{detect_topology(os.environ).rank}")))


class Dumping(TorchDigits):
    """Each rank leaves its own final weights in DUMP_FOLDER/rank_N.npz."""

    def build_model(self) -> nn.Module:
        model = super().build_model()
        path = Path(os.environ["DUMP_FOLDER"]) / f"rank_{detect_topology(os.environ).rank}.npz"
        atexit.register(lambda: np.savez(path, **{name: t.numpy() for name, t in model.state_dict().items()}))
        return model


class Diverging(TorchDigits):
    """Rank 1 changes one weight behind everybody's back, in the first batch that it measures."""

    def measure(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if strikes("weights") == "change":
            with torch.no_grad():
                next(model.parameters()).view(-1)[0] += 1e-3
        return super().measure(model, batch)
