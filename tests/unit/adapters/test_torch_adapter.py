"""The torch adapter's step is the plain step over the real samples of the global batch."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.numpy_training import CLASSES, WIDTH
from support.torch_training import LR, TorchRows
from torch import nn
from torch.nn import functional

from data_sharding import LoadedBatch
from hvdtrain.adapters.torch.adapter import TorchAdapter
from hvdtrain.comm.communicator import SerialCommunicator
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.engine.meter import Meter
from hvdtrain.errors import UsageError
from hvdtrain.topology import Topology


class Plain(TorchRows):
    """Without dropout and BatchNorm, so that samples do not act on each other."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def open_adapter(task: TorchRows, seed: int = 1) -> TorchAdapter:
    return TorchAdapter(task, Topology.single(), seed, LR, TrainingOptions())


def batch_of(rows: int, masked: int = 0, seed: int = 0) -> LoadedBatch:
    """`rows` slots, the last `masked` of them of weight 0."""
    random = np.random.default_rng(seed)
    weights = np.ones(rows, np.float32)
    weights[rows - masked :] = 0
    features: dict[str, Any] = {
        "x": random.normal(size=(rows, WIDTH)).astype(np.float32),
        "label": random.integers(0, CLASSES, rows),
    }
    return LoadedBatch(0, np.arange(rows), weights, features, float(rows - masked))


@given(rows=st.integers(1, 12), masked=st.integers(0, 11), seed=st.integers(0, 1000))
@settings(max_examples=25)
def test_a_step_with_masked_slots_is_the_plain_step_over_the_real_samples(rows: int, masked: int, seed: int) -> None:
    masked = min(masked, rows - 1)
    batch = batch_of(rows, masked, seed)
    adapter = open_adapter(Plain("SGD"))
    model = copy.deepcopy(adapter.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    adapter.train_step(batch, 0, 0.5)

    real = rows - masked
    logits = model(torch.from_numpy(batch.features["x"][:real]))
    functional.cross_entropy(logits, torch.from_numpy(batch.features["label"][:real])).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    for ours, theirs in zip(adapter.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


class TwoRates(Plain):
    """The last layer learns ten times as slowly."""

    def build_optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        first, last = model[0], model[2]  # type: ignore[index]
        return torch.optim.SGD([{"params": first.parameters()}, {"params": last.parameters(), "lr": lr / 10}], lr=lr)


def test_parameter_groups_keep_the_proportion_of_their_learning_rates() -> None:
    adapter = open_adapter(TwoRates())
    for lr in (LR, LR / 4):
        adapter.train_step(batch_of(4), 0, lr)
        assert [group["lr"] for group in adapter.optimizer.param_groups] == pytest.approx([lr, lr / 10])


def test_sums_are_over_real_samples_and_reading_resets_them() -> None:
    adapter = open_adapter(Plain())
    batch = batch_of(6, masked=2)
    adapter.eval_step(batch)
    adapter.eval_step(batch)
    with torch.no_grad():
        features = {name: torch.from_numpy(array[:4]) for name, array in batch.features.items()}
        expected = {name: 2 * float(v.sum()) for name, v in Plain().measure(adapter.model, features).items()}
    sums = adapter.read_sums()
    assert sums.values == pytest.approx(expected, rel=1e-6)
    assert adapter.read_sums().values == {}


def test_evaluation_changes_nothing() -> None:
    adapter = open_adapter(TorchRows())
    adapter.train_step(batch_of(8), 0, LR)
    before = adapter.state()
    adapter.eval_step(batch_of(8))
    after = adapter.state()
    assert {name: array.tobytes() for name, array in before.items()} == {n: a.tobytes() for n, a in after.items()}


def test_random_numbers_are_a_function_of_seed_and_step() -> None:
    def weights(seed: int, steps: list[int], disturbance: int) -> bytes:
        adapter = open_adapter(TorchRows(dropout=0.5), seed=7)
        adapter._passes = replace(adapter._passes, draws=replace(adapter._passes.draws, seed=seed))
        for step in steps:
            torch.rand(disturbance)
            adapter.train_step(batch_of(8), step, LR)
        return b"".join(array.tobytes() for array in adapter.state().values())

    assert weights(1, [0, 1], 3) == weights(1, [0, 1], 5)
    assert weights(1, [0, 1], 3) != weights(1, [0, 2], 3)
    assert weights(1, [0, 1], 3) != weights(2, [0, 1], 3)


def test_the_seed_decides_the_initial_weights() -> None:
    def weights(seed: int) -> bytes:
        return b"".join(array.tobytes() for array in open_adapter(Plain(), seed).state().values())

    assert weights(1) == weights(1) != weights(2)


def test_the_learning_rate_is_the_steps() -> None:
    """Plain SGD moves the weights in proportion to it."""
    moves = []
    for lr in (0.1, 0.2):
        adapter = open_adapter(Plain("SGD"))
        before = adapter.state()["model/0.weight"]
        adapter.train_step(batch_of(8), 0, lr)
        moves.append(adapter.state()["model/0.weight"] - before)
    np.testing.assert_allclose(2 * moves[0], moves[1], rtol=1e-3, atol=1e-6)


def test_features_may_be_read_only() -> None:
    """`np.frombuffer(b"".join(records))` is; torch would warn."""
    batch = batch_of(4)
    for array in batch.features.values():
        array.setflags(write=False)
    open_adapter(Plain()).train_step(batch, 0, LR)


class Measuring(Plain):
    """Its measure() returns what the test says."""

    answer: Any = None

    def measure(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Any:
        return self.answer(super().measure(model, batch))


REFUSED = {
    "no dict": (lambda m: m["loss"], "without a 'loss'"),
    "no loss": (lambda m: {"accuracy": m["accuracy"]}, "without a 'loss'"),
    "a mean": (lambda m: {"loss": m["loss"].mean()}, "'loss' of shape ()"),
    "another measure's mean": (lambda m: {**m, "accuracy": m["accuracy"].mean()}, "'accuracy' of shape ()"),
    "a column": (lambda m: {"loss": m["loss"][:, None]}, "'loss' of shape (4, 1) for 4 samples"),
    "too few": (lambda m: {"loss": m["loss"][:3]}, "'loss' of shape (3,) for 4 samples"),
    "a taken name": (lambda m: {**m, "step": m["loss"]}, "a value under the name 'step'"),
    "a metric's name": (lambda m: {**m, "lr": m["loss"]}, "a value under the name 'lr'"),
    "a number": (lambda m: {**m, "accuracy": 0.5}, "'accuracy' as an object of type float."),
    "an array": (lambda m: {**m, "accuracy": m["accuracy"].numpy()}, "'accuracy' as an object of type numpy.ndarray."),
    "a list": (lambda m: {**m, "accuracy": m["accuracy"].tolist()}, "'accuracy' as an object of type list."),
    "no text as a name": (lambda m: {**m, 3: m["accuracy"]}, "a value under the name 3, an object of type int."),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("step", ["train", "eval"])
def test_measures_that_are_not_one_value_a_sample_are_refused(case: str, step: str) -> None:
    answer, fact = REFUSED[case]
    task = Measuring()
    task.answer = answer
    adapter = open_adapter(task)
    with pytest.raises(UsageError) as caught:
        adapter.train_step(batch_of(4), 0, LR) if step == "train" else adapter.eval_step(batch_of(4))
    assert fact in caught.value.fact


@pytest.mark.parametrize("step", ["train", "eval"])
def test_measures_of_later_batches_are_looked_at_too(step: str) -> None:
    """Such as those of a measure() that reduces the loss in evaluation only."""
    task = Measuring()
    task.answer = lambda measures: measures
    adapter = open_adapter(task)
    adapter.train_step(batch_of(4), 0, LR)
    task.answer = lambda measures: {**measures, "loss": measures["loss"].mean()}
    with pytest.raises(UsageError, match=r"'loss' of shape \(\) for 4 samples"):
        adapter.train_step(batch_of(4), 1, LR) if step == "train" else adapter.eval_step(batch_of(4))


def test_a_measure_that_some_batches_lack_is_averaged_over_the_samples_that_have_it() -> None:
    task = Measuring()
    adapter, comm = open_adapter(task), SerialCommunicator(Topology.single())
    meter = Meter(adapter, comm)
    task.answer = lambda measures: measures
    extended = batch_of(6, masked=2)
    for step, batch in enumerate((batch_of(4), extended)):
        adapter.train_step(batch, step, LR)
        meter.count(batch)
        task.answer = lambda measures: {**measures, "rows": torch.arange(6.0)}
    reading = meter.reduce("training")
    assert reading.samples == 8
    assert reading.values["rows"] == (0 + 1 + 2 + 3) / 4


class ForeignParameter(Plain):
    def build_optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD([*model.parameters(), nn.Parameter(torch.zeros(3))], lr=lr)


def test_an_optimizer_that_trains_what_is_not_in_the_model_is_refused() -> None:
    with pytest.raises(UsageError, match=r"not part of the model, the first of shape \(3,\)"):
        open_adapter(ForeignParameter())


def test_frozen_parameters_and_several_groups_are_fine() -> None:
    class Grouped(Plain):
        def build_optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
            first = next(model.parameters()).requires_grad_(False)
            rest = [p for p in model.parameters() if p is not first]
            groups: list[dict[str, Any]] = [{"params": rest[:1], "weight_decay": 0.0}, {"params": rest[1:]}]
            return torch.optim.AdamW(groups, lr=lr)

    adapter = open_adapter(Grouped())
    before = adapter.state()
    adapter.train_step(batch_of(8), 0, LR)
    moved = {
        name for name, array in adapter.state().items() if name in before and not np.array_equal(array, before[name])
    }
    assert moved == {"model/0.bias", "model/2.weight", "model/2.bias"}
    copied = open_adapter(Grouped())
    copied.load_state(adapter.state())
    assert copied.state().keys() == adapter.state().keys()
    assert adapter.parameter_count() == 8 + 8 * CLASSES + CLASSES
