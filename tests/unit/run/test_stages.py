"""A model in stages that this job cannot train is refused before anything is trained, with what would work."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.ranks import topology_of
from torch import nn

from hvdtrain.adapters.torch.pipeline.cuts import chosen_cuts
from hvdtrain.config.parallel_options import ParallelOptions
from hvdtrain.config.train_config import DataConfig, TrainConfig
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.engine.memory import own_bytes
from hvdtrain.errors import UsageError
from hvdtrain.run.host_memory import host_memory_left
from hvdtrain.run.stage_checks import micro_batch_count, require_stages
from hvdtrain.tasks.task_registry import load_task
from hvdtrain.tasks.torch import TorchDigits
from hvdtrain.topology import Topology

FEATURES = TorchDigits().example()


def refusal(config: TrainConfig, size: int, framework: str = "torch", local_size: int = 1) -> UsageError:
    with pytest.raises(UsageError) as refused:
        require_stages(config, load_task("digits", framework), Topology(0, size, 0, local_size, 0, size))
    return refused.value


@pytest.mark.parametrize(
    ("stages", "size", "hint"),
    [(2, 1, "horovodrun -np 2"), (2, 3, "--parallel.stages 3"), (4, 6, "--parallel.stages 2 or 3 or 6")],
)
def test_workers_that_cannot_form_pipelines(stages: int, size: int, hint: str) -> None:
    error = refusal(TrainConfig(parallel=ParallelOptions(stages)), size)
    assert f"--parallel.stages is {stages}" in error.fact
    assert hint in error.hint
    assert error.exit_code == 2


def test_tensorflow_and_pipes_and_devices_of_several_workers() -> None:
    two = ParallelOptions(2)
    assert "written for tensorflow" in refusal(TrainConfig(parallel=two), 2, "tensorflow").fact
    pipes = TrainConfig(parallel=two, data=DataConfig(mode="pipe", pipe_dir="/pipes", pipe_plan="plan"))
    assert "--data.mode pipe" in refusal(pipes, 2).fact
    gpus = TrainConfig(parallel=ParallelOptions(2, "cuda:0,cuda:1"))
    assert "2 workers of one machine" in refusal(gpus, 2, local_size=2).fact


def test_micro_batches_are_as_many_as_there_are_records_at_most() -> None:
    assert micro_batch_count(ParallelOptions(), 8) == 1
    assert micro_batch_count(ParallelOptions(2), 100) == 8
    assert micro_batch_count(ParallelOptions(2), 5) == 5
    assert micro_batch_count(ParallelOptions(2, micro_batches=3), 100) == 3


def cuts_of(**parallel: Any) -> tuple[list[int], list[str]]:
    return chosen_cuts(TorchDigits(), TrainingOptions(parallel=ParallelOptions(**parallel)), FEATURES, 2)


@pytest.mark.parametrize(
    ("parallel", "words"),
    [
        ({"stages": 5}, "can be cut into 4 parts with weights that are trained, and --parallel.stages is 5"),
        ({"stages": 2, "cuts": "hiden"}, "names 'hiden', at which the model Sequential cannot be cut"),
        ({"stages": 3, "cuts": "relu1,conv2"}, "leaves a stage without weights that are trained"),
        ({"stages": 2, "devices": "cpu,tpu"}, "names 'tpu'"),
        ({"stages": 3, "cuts": "hidden,conv2"}, "leaves a stage without weights"),
    ],
)
def test_cuts_that_cannot_be(parallel: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as refused:
        cuts_of(**parallel)
    assert words in str(refused.value)


def test_auto_chooses_for_workers_not_for_devices() -> None:
    with pytest.raises(UsageError, match="--parallel auto is given with --parallel.devices cpu,cpu"):
        ParallelOptions(choose="auto", devices="cpu,cpu")


class Regularized(TorchDigits):
    """Its loss needs all weights."""

    def measure(self, model: Any, batch: Any) -> Any:
        measures = super().measure(model, batch)
        return {**measures, "loss": measures["loss"] + sum(p.square().sum() for p in model.parameters())}


@pytest.mark.parametrize("cuts", ["", "relu1"])
def test_a_measure_that_needs_the_whole_model_is_refused_at_the_start(cuts: str) -> None:
    options = TrainingOptions(parallel=ParallelOptions(2, cuts=cuts))
    with pytest.raises(UsageError, match="uses 'parameters' of the model"):
        chosen_cuts(Regularized(), options, FEATURES, 2)


def test_each_stage_is_told() -> None:
    starts, lines = cuts_of(stages=3)
    assert len(starts) == 2
    assert len(lines) == 3
    assert all("ms a micro batch" in line for line in lines)


def test_a_host_with_little_memory_is_no_reason_to_refuse() -> None:
    """The optimizer may need less than is assumed: whether the stages fit is then tried."""
    options = TrainingOptions(parallel=ParallelOptions(2))
    for most in (1.0, 1e12):
        starts, _ = chosen_cuts(TorchDigits(), options, FEATURES, 2, most)
        assert len(starts) == 1


def test_workers_of_a_host_share_its_memory() -> None:
    # Others take memory and give it back between the two looks.
    alone, of_four = (host_memory_left(topology_of(0, size)) + own_bytes() for size in (1, 4))
    assert alone == pytest.approx(4 * of_four, rel=0.2)


class OneModel(TorchDigits):
    """A task that builds a single model, ever."""

    def __init__(self) -> None:
        super().__init__()
        side = FEATURES["image"].shape[1]
        self.model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2 * side * side, 10))

    def build_model(self) -> nn.Sequential:
        return self.model


def test_measuring_leaves_no_trace() -> None:
    task = OneModel()
    before = {name: tensor.clone() for name, tensor in task.model.state_dict().items()}
    drawn = torch.random.get_rng_state()
    chosen_cuts(task, TrainingOptions(parallel=ParallelOptions(2)), FEATURES, 2)
    torch.testing.assert_close(task.model.state_dict(), before, rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in task.model.parameters())
    assert torch.equal(torch.random.get_rng_state(), drawn)
