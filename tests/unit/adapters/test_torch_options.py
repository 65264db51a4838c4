"""What a torch model is made of by the options, and what the device or the job refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from data_sharding import LoadedBatch
from hvdtrain.adapters.torch.adapter import TorchAdapter
from hvdtrain.adapters.torch.device import apply_settings
from hvdtrain.config.parallel_options import ParallelOptions
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.errors import UsageError
from hvdtrain.task.data_access import DataAccess
from hvdtrain.task.splits import Splits
from hvdtrain.task.task import Task
from hvdtrain.topology import Topology


class Images(Task):
    """Two convolutions with BatchNorm in two blocks."""

    framework = "torch"

    def open_data(self, data: DataAccess) -> Splits:
        raise NotImplementedError

    def decode(self, records: Any) -> Any:
        raise NotImplementedError

    def build_model(self) -> nn.Module:
        def block(channels: int) -> nn.Module:
            return nn.Sequential(nn.Conv2d(channels, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())

        return nn.Sequential(block(3), block(4), nn.Flatten(), nn.Linear(4 * 16, 5))

    def build_optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)

    def measure(self, model: Any, batch: Any) -> dict[str, Any]:
        logits = model(batch["image"])
        return {"loss": nn.functional.cross_entropy(logits, batch["label"], reduction="none"), "low": logits.mean(1)}


@pytest.fixture(autouse=True)
def _settings_of_before() -> Iterator[None]:
    yield
    apply_settings("fp32", False, torch.device("cpu"))


def batch(seed: int = 0, masked: int = 0) -> LoadedBatch:
    random = np.random.default_rng(seed)
    weights = np.ones(12, np.float32)
    weights[12 - masked :] = 0
    features = {
        "image": random.normal(size=(12, 3, 4, 4)).astype(np.float32),
        "label": random.integers(0, 5, 12),
    }
    return LoadedBatch(0, np.arange(12), weights, features, float(12 - masked))


def trained(masked: int = 0, **options: Any) -> dict[str, Any]:
    adapter = TorchAdapter(Images(), Topology.single(), 3, 0.1, TrainingOptions(**options))
    for step in range(4):
        adapter.train_step(batch(step, masked), step, 0.1)
    with adapter.evaluating():
        adapter.eval_step(batch(9))
    return adapter.state()


@pytest.mark.parametrize(
    "options",
    [
        {"channels_last": True},
        {"activation_checkpointing": True},
        {"sync_batch_norm": True},
        {"data_parallel": True},
        {"deterministic": True},
        {"activation_checkpointing": True, "sync_batch_norm": True, "channels_last": True},
    ],
)
def test_the_weights_are_those_of_the_plain_model(options: dict[str, Any]) -> None:
    plain, other = trained(), trained(**options)
    assert plain.keys() == other.keys()
    for name, array in plain.items():
        np.testing.assert_allclose(other[name], array, rtol=1e-4, atol=1e-6, err_msg=name)


def test_records_that_fill_a_step_do_not_count_in_synchronized_statistics() -> None:
    def statistics(fill: float) -> Any:
        adapter = TorchAdapter(Images(), Topology.single(), 3, 0.1, TrainingOptions(sync_batch_norm=True))
        filled = batch(0, masked=4)
        filled.features["image"][8:] = fill
        adapter.train_step(filled, 0, 0.1)
        return adapter.state()

    one, other = statistics(1.0), statistics(100.0)
    for name, array in one.items():
        np.testing.assert_allclose(other[name], array, rtol=1e-5, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_in_low_precision_weights_stay_float32_and_training_goes_nearly_the_same_way(precision: Any) -> None:
    plain, low = trained(), trained(precision=precision)
    for name, array in plain.items():
        assert low[name].dtype == array.dtype
        if name.startswith("model/") and "running" not in name:
            np.testing.assert_allclose(low[name], array, atol=0.05, err_msg=name)
    assert any((low[name] != array).any() for name, array in plain.items())
    assert ("scaler/scale" in low) == (precision == "fp16")


def test_tf32_is_refused_on_a_cpu() -> None:
    with pytest.raises(UsageError, match="tf32 is asked for on a device without TF32"):
        TorchAdapter(Images(), Topology.single(), 3, 0.1, TrainingOptions(precision="tf32"))


def test_data_parallel_is_refused_in_a_job_of_workers() -> None:
    with pytest.raises(UsageError, match="--data-parallel is given to 2 workers"):
        TorchAdapter(Images(), Topology(0, 2, 0, 2), 3, 0.1, TrainingOptions(data_parallel=True))


def test_torchs_synchronized_batch_norm_is_refused_in_a_job_of_workers() -> None:
    class Synchronized(Images):
        def build_model(self) -> nn.Module:
            return nn.SyncBatchNorm.convert_sync_batchnorm(super().build_model())

    for ranks, parallel in ((2, ParallelOptions()), (4, ParallelOptions(stages=2))):
        with pytest.raises(UsageError, match=r"is a torch\.nn\.SyncBatchNorm, and torch\.distributed is not init"):
            TorchAdapter(Synchronized(), Topology(0, ranks, 0, ranks), 3, 0.1, TrainingOptions(parallel=parallel))
    for option in (False, True):
        TorchAdapter(Synchronized(), Topology.single(), 3, 0.1, TrainingOptions(sync_batch_norm=option))


def test_several_steps_in_a_call_are_refused() -> None:
    with pytest.raises(UsageError, match="--steps-per-call 4 is given with torch"):
        TorchAdapter(Images(), Topology.single(), 3, 0.1, TrainingOptions(steps_per_call=4))


def test_activation_checkpointing_is_refused_for_a_model_without_blocks() -> None:
    class Flat(Images):
        def build_model(self) -> nn.Module:
            return nn.Sequential(nn.Flatten(), nn.Linear(48, 5))

    with pytest.raises(UsageError, match="has no repeated blocks"):
        TorchAdapter(Flat(), Topology.single(), 3, 0.1, TrainingOptions(activation_checkpointing=True))


def test_deterministic_kernels_are_chosen_and_left_again() -> None:
    TorchAdapter(Images(), Topology.single(), 3, 0.1, TrainingOptions(deterministic=True))
    assert torch.are_deterministic_algorithms_enabled()
    TorchAdapter(Images(), Topology.single(), 3, 0.1, TrainingOptions())
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_skipped_update_is_counted_and_leaves_the_weights() -> None:
    adapter = TorchAdapter(Images(), Topology.single(), 3, 0.1, TrainingOptions(precision="fp16"))
    before = adapter.state()
    adapter._update._loss_scale.scale = 2.0**30  # type: ignore[attr-defined]  # gradients overflow, the loss does not
    adapter.train_step(batch(), 0, 0.1)
    sums = adapter.read_sums()
    assert sums.skipped == 1
    assert np.isfinite(sums.values["loss"])
    after = adapter.state()
    for name in (n for n in before if n.startswith("model/") and "running" not in n and "num_batches" not in n):
        np.testing.assert_array_equal(after[name], before[name])


def test_a_loss_that_is_not_finite_is_told_in_fp16_too() -> None:
    adapter = TorchAdapter(Images(), Topology.single(), 3, 0.1, TrainingOptions(precision="fp16"))
    bad = batch()
    bad.features["image"][3] = np.nan
    adapter.train_step(bad, 0, 0.1)
    assert not np.isfinite(adapter.read_sums().values["loss"])


def test_a_lazy_model_and_an_optimizer_with_a_closure_are_refused() -> None:
    class Lazy(Images):
        def build_model(self) -> nn.Module:
            return nn.Sequential(nn.Flatten(), nn.LazyLinear(5))

    class Closure(Images):
        def build_optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
            return torch.optim.LBFGS(model.parameters(), lr=lr)

    with pytest.raises(
        UsageError, match="The lazy layer '1' of the model that build_model\\(\\) returned has no weights yet"
    ):
        TorchAdapter(Lazy(), Topology.single(), 3, 0.1, TrainingOptions())
    with pytest.raises(UsageError, match="LBFGS needs a closure"):
        TorchAdapter(Closure(), Topology.single(), 3, 0.1, TrainingOptions())


def test_the_state_of_a_parameter_that_is_no_longer_trained_is_refused() -> None:
    class Head(Images):
        def build_optimizer(self, model: Any, lr: float) -> torch.optim.Optimizer:
            return torch.optim.SGD(model[-1].parameters(), lr=lr, momentum=0.9)

    with pytest.raises(UsageError, match="The saved optimizer trained '0.0.weight'"):
        TorchAdapter(Head(), Topology.single(), 3, 0.1, TrainingOptions()).load_state(trained())


class Predicting(Images):
    """Predicts what it holds, for each batch."""

    value: torch.Tensor

    def predict(self, model: Any, batch: Any) -> dict[str, Any]:  # noqa: ARG002
        return {"x": self.value}


def test_tensors_that_numpy_has_no_array_for_are_no_predictions() -> None:
    adapter = TorchAdapter(task := Predicting(), Topology.single(), 3, 0.1, TrainingOptions())
    task.value = torch.eye(12).to_sparse()
    with pytest.raises(UsageError, match="What Predicting predicts is 'x', an object of type Tensor, for 12 samples"):
        adapter.predict_step(batch())
    task.value = torch.ones(12).to(torch.float8_e4m3fn)
    assert adapter.predict_step(batch())["x"].tolist() == [1.0] * 12


def test_one_forward_pass_measures_and_predicts() -> None:
    adapter = TorchAdapter(Images(), Topology.single(), 3, 0.1, TrainingOptions())
    calls: list[Any] = []
    adapter.eval_step(batch(9, masked=3))
    measured, predicted = adapter.read_sums().values, adapter.predict_step(batch(9, masked=3))
    adapter.model.register_forward_hook(lambda *_: calls.append(None))
    output = adapter.eval_with_output(batch(9, masked=3))
    assert len(calls) == 1
    assert adapter.read_sums().values == measured
    assert output.keys() == predicted.keys() == {"output"}
    assert (output["output"] == predicted["output"]).all()
