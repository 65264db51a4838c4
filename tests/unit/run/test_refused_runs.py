"""TrainingOptions that a task, a model or a path cannot serve are refused before anything is trained."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from hvdtrain.adapters.torch.sync_batch_norm import convert_sync_batch_norm
from hvdtrain.checkpoints.resume import checkpoint_at, followed
from hvdtrain.comm.communicator import SerialCommunicator
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.errors import UsageError
from hvdtrain.run.prepare import prepare
from hvdtrain.tasks.task_registry import load_task
from hvdtrain.topology import Topology


def test_the_decay_of_the_task_s_own_optimizer_is_refused_with_another_optimizer() -> None:
    config = TrainConfig(task="synthetic", optimizer="lamb", task_args={"weight_decay": 0.3})
    with pytest.raises(UsageError, match=r"--task-args.weight-decay is given with --optimizer lamb") as caught:
        prepare(config, load_task("synthetic", "torch"), SerialCommunicator(Topology.single()))
    assert "--weight-decay 0.3" in caught.value.hint


def test_synchronizing_no_batch_norm_is_refused() -> None:
    with pytest.raises(UsageError, match="has no BatchNorm"):
        convert_sync_batch_norm(nn.Sequential(nn.Linear(2, 2)), None)


@pytest.mark.parametrize(("batch", "micro", "enough"), [(5, 2, True), (5, 3, False), (2, 1, True), (1, 1, False)])
def test_micro_batches_hold_as_many_records_as_batch_norm_needs(batch: int, micro: int, enough: bool) -> None:
    arguments = {"side": 32, "records": 20}
    config = TrainConfig(
        task="synthetic", model="resnet18", global_batch_size=batch, accumulate_steps=micro, task_args=arguments
    )
    comm, kind = SerialCommunicator(Topology.single()), load_task("synthetic", "torch")
    if enough:
        assert prepare(config, kind, comm).train.plan(0).global_batch == batch
    else:
        with pytest.raises(UsageError, match="BatchNorm takes its statistics from the records of one worker"):
            prepare(config, kind, comm)


def test_a_pointer_leads_to_its_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    (folder / "step_00000003").mkdir(parents=True)
    (folder / "best").write_text("step_00000003\n")
    assert followed(folder / "best") == folder / "step_00000003"
    assert followed(folder / "step_00000003") == folder / "step_00000003"
    with pytest.raises(UsageError, match="holds no checkpoint"):
        checkpoint_at(folder / "best")


def test_no_file_of_weights_is_refused() -> None:
    with pytest.raises(UsageError, match="--init-weights is empty"):
        TrainConfig(init_weights="")
