"""What a torch state may hold, on 2 ranks: equal at the start and at each checkpoint, or refused on all of them.

argv: FOLDER with rows as `numpy_training.write_data` makes them, and OUT. Leaves OUT/ROW/checkpoints.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from support.numpy_training import Data, Setting, train  # noqa: E402
from support.state_models import MovingMomentum, Row, with_buffers  # noqa: E402
from support.state_rows import ROWS_OF_RANKS  # noqa: E402
from support.torch_training import LR, open_torch  # noqa: E402

from data_sharding import Catalog  # noqa: E402
from hvdtrain.adapters.torch.adapter import TorchAdapter  # noqa: E402
from hvdtrain.checkpoints.format import read_checkpoint  # noqa: E402
from hvdtrain.comm.communicator import Communicator  # noqa: E402
from hvdtrain.comm.open import open_communicator  # noqa: E402
from hvdtrain.config.training_options import TrainingOptions  # noqa: E402
from hvdtrain.engine.limits import RunLimits  # noqa: E402
from hvdtrain.engine.state_sync import assert_equal_weights  # noqa: E402
from hvdtrain.errors import DivergenceError  # noqa: E402
from hvdtrain.named_arrays import State  # noqa: E402
from hvdtrain.task.task import Task  # noqa: E402
from hvdtrain.topology import detect_topology  # noqa: E402

EVERY_STEP = RunLimits(2, log_interval=1, checkpoint_interval=1)


def check_saved(setting: Setting, comm: Communicator) -> None:
    """Resumed in the middle it ends as the run that was not interrupted, on every rank."""
    whole = train(setting, comm, EVERY_STEP, None, None)
    one = whole_state(whole.adapter, comm)
    digest = assert_equal_weights(comm, one, "After training")
    middle = read_checkpoint(setting.store().paths()[2])
    elsewhere = replace(setting, folder=setting.folder / "resumed")
    resumed = train(elsewhere, comm, EVERY_STEP, middle.position, middle.state)
    other = whole_state(resumed.adapter, comm)
    assert assert_equal_weights(comm, other, "After training") == digest
    different = [name for name in {**one, **other} if one[name].tobytes() != other[name].tobytes()]
    assert different == []


def whole_state(adapter: Any, comm: Communicator) -> State:
    adapter.gather_state(comm, True)
    state: State = adapter.state()
    return state


def check_sharded(setting: Setting, comm: Communicator) -> None:
    """Each rank has a part of the optimizer; what a callback has set in its groups is saved once."""
    assert isinstance(setting.task, MovingMomentum)
    check_saved(replace(setting, open_adapter=open_sharded, callbacks=(setting.task.callback,)), comm)
    saved = read_checkpoint(setting.store().paths()[2]).state
    assert b'"momentum"' in saved["optimizer/#numbers"].item()


def open_sharded(task: Task, comm: Communicator, seed: int) -> TorchAdapter:
    return TorchAdapter(task, comm.topology, seed, LR, TrainingOptions(shard="optimizer"))


def check_other_sizes(setting: Setting, comm: Communicator) -> None:
    """A buffer that grows by another number of rows on each rank: named before the first checkpoint is written."""
    with pytest.raises(DivergenceError) as error:
        train(setting, comm, EVERY_STEP, None, None)
    assert error.value.fact == "The buffer 'held0' is float32 [2] on rank 1, and float32 [1] on rank 0."
    assert setting.store().paths() == []


def main(folder: Path, out: Path) -> None:
    topology = detect_topology(os.environ)
    comm = open_communicator("torch", topology, 60)
    data = Data(folder, Catalog.index(folder / "train-*.tfrecord"), Catalog.index(folder / "validation-*.tfrecord"))
    checks: dict[str, tuple[Callable[[int], Row], Callable[[Setting, Communicator], Any]]]
    checks = {row: (build, check_saved) for row, build in ROWS_OF_RANKS.items()}
    checks["other sizes"] = (lambda rank: growing_by(rank + 1), check_other_sizes)
    checks["sharded"] = (lambda _: MovingMomentum(), check_sharded)
    for row, (build, check) in checks.items():
        task = build(topology.rank)
        check(Setting(data, out / row, open_adapter=open_torch, task=task, sets=()), comm)
    comm.close()
    print(f"CHECKED rank {topology.rank}", flush=True)


def growing_by(rows: int) -> Row:
    return with_buffers(lambda: [torch.zeros(0)], lambda held: torch.cat([held, torch.zeros(rows)]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
