"""A small real training in numpy: softmax regression with momentum, in float64, behind the `Adapter` protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from data_sharding import Catalog, LoadedBatch, write_shards
from data_sharding.catalog import OnCorrupt
from hvdtrain.adapters.adapter_protocol import Sums
from hvdtrain.adapters.step_timer import SpanSink
from hvdtrain.algorithms.early_stopping import EarlyStopping
from hvdtrain.algorithms.lr_schedule import Schedule
from hvdtrain.algorithms.quantile_sketch import QuantileSketch
from hvdtrain.audit.ledger import CoverageLedger
from hvdtrain.checkpoints.format import Position
from hvdtrain.checkpoints.store import CheckpointStore
from hvdtrain.checkpoints.writer import CheckpointWriter
from hvdtrain.comm.communicator import Communicator
from hvdtrain.config.train_config import DataConfig
from hvdtrain.data.catalog_source import CatalogSource
from hvdtrain.engine import events
from hvdtrain.engine.engine import Engine
from hvdtrain.engine.limits import RunLimits, RunResult
from hvdtrain.engine.saves import SavePolicy
from hvdtrain.engine.state_sync import broadcast_state
from hvdtrain.engine.stop_vote import StopRequest, never_asked
from hvdtrain.named_arrays import NO_STATE, State, weights_of
from hvdtrain.set_names import UNNAMED
from hvdtrain.task.data_access import DataAccess
from hvdtrain.task.splits import Splits
from hvdtrain.task.task import Features, Task

WIDTH = 5
CLASSES = 3
MOMENTUM = 0.9
DRIFT = 0.1  # how fast the running mean follows the batches


@dataclass(frozen=True)
class Data:
    folder: Path
    train: Catalog
    validation: Catalog


def write_data(folder: Path, train: int, validation: int) -> Data:
    """Real TFRecord files with that many records: float32[WIDTH], then the label as one more float32."""
    random = np.random.default_rng(train * 1000 + validation)
    for name, count in (("train", train), ("validation", validation)):
        rows = random.normal(size=(count, WIDTH + 1)).astype(np.float32)
        rows[:, WIDTH] = random.integers(0, CLASSES, count)
        write_shards(folder, name, [row.tobytes() for row in rows], min(3, count))
    return Data(folder, Catalog.index(folder / "train-*.tfrecord"), Catalog.index(folder / "validation-*.tfrecord"))


def decode_rows(records: Sequence[bytes]) -> Features:
    """ "x": float32 [n, WIDTH], "label": int64 [n]."""
    rows = np.array([np.frombuffer(record, np.float32) for record in records])
    return {"x": rows[:, :WIDTH].copy(), "label": rows[:, WIDTH].astype(np.int64)}


class NumpyTask(Task):
    """Decodes; model and measures are the adapter's."""

    framework: ClassVar[str] = "torch"

    def open_data(self, data: DataAccess) -> Splits:
        return Splits(data.catalog("train-*.tfrecord"), data.catalog("validation-*.tfrecord"))

    def decode(self, records: Sequence[bytes]) -> Features:
        return decode_rows(records)

    def build_model(self) -> dict[str, Any]:
        return {"weights": np.zeros((WIDTH, CLASSES)), "bias": np.zeros(CLASSES), "running_mean": np.zeros(WIDTH)}

    def build_optimizer(self, model: dict[str, Any], lr: float) -> dict[str, Any]:  # noqa: ARG002
        return {name: np.zeros_like(model[name]) for name in ("weights", "bias")}

    def measure(self, model: dict[str, Any], batch: Mapping[str, Any]) -> dict[str, Any]:
        probabilities = softmax(batch["x"] @ model["weights"] + model["bias"])
        rows = np.arange(len(batch["label"]))
        right = probabilities.argmax(axis=1) == batch["label"]
        return {"loss": -np.log(probabilities[rows, batch["label"]]), "accuracy": right.astype(np.float64)}


class NumpyAdapter:
    """Implements `Adapter`. `noise` adds random numbers of (seed, step) to the gradient, as dropout would."""

    stage: int | None = None
    counts = True
    worker_states = None
    pass_checks = None

    def __init__(self, task: NumpyTask, comm: Communicator, seed: int, noise: float = 0.0) -> None:
        self._task, self._comm, self._seed, self._noise = task, comm, seed, noise
        self.model = task.build_model()
        self.model["weights"] = np.random.default_rng(seed).normal(size=(WIDTH, CLASSES))
        self.velocity = task.build_optimizer(self.model, 0.0)
        self._sums: dict[str, float] = {}
        self.calls: list[tuple[int, int]] = []
        """For each call of `train_steps`: after how many updates it came, and how many it made."""

    def begin_epoch(self) -> None:
        pass

    def take_changes(self, comm: Communicator) -> None:
        pass

    def train_steps(self, batches: Sequence[LoadedBatch], step: int, lrs: Sequence[float]) -> None:
        self.calls.append((step, len(batches)))
        for number, (batch, lr) in enumerate(zip(batches, lrs, strict=True), step):
            self.train_step(batch, number, lr)

    def train_step(self, batch: LoadedBatch, step: int, lr: float) -> None:
        x, label = batch.features["x"].astype(np.float64), batch.features["label"]
        self._add(batch)
        shares = batch.weights.astype(np.float64) / max(batch.global_weight, 1.0)
        error = softmax(x @ self.model["weights"] + self.model["bias"])
        error[np.arange(len(label)), label] -= 1
        error *= shares[:, None]
        for name, own in (("weights", x.T @ error), ("bias", error.sum(axis=0))):
            gradient = self._comm.allreduce(own, f"gradient.{name}")
            gradient += self._noise * np.random.default_rng((self._seed, step)).normal(size=gradient.shape)
            self.velocity[name] = MOMENTUM * self.velocity[name] + gradient
            self.model[name] = self.model[name] - lr * self.velocity[name]
        self._drift(x, DRIFT)

    def eval_step(self, batch: LoadedBatch) -> None:
        self._add(batch)
        self._drift(batch.features["x"].astype(np.float64), DRIFT / 10)

    def _drift(self, x: Any, share: float) -> None:
        """Change the model's buffer, by this rank's samples alone: in training and in evaluation."""
        self.model["running_mean"] = (1 - share) * self.model["running_mean"] + share * x.mean(axis=0)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        yield

    def _add(self, batch: LoadedBatch) -> None:
        for name, value in self._task.measure(self.model, batch.features).items():
            self._sums[name] = self._sums.get(name, 0.0) + float((value * batch.weights).sum())

    def read_sums(self) -> Sums:
        sums, self._sums = Sums(self._sums, 0.0), {}
        return sums

    def take_part_times(self) -> Mapping[str, QuantileSketch]:
        return {}

    def tell_parts(self, tell: SpanSink | None) -> None:
        pass

    def gather_state(self, comm: Communicator, keeps: bool) -> bool:  # noqa: ARG002
        return False

    def state(self, earlier: Mapping[str, Any] = NO_STATE) -> State:  # noqa: ARG002
        model = {f"model/{name}": array.copy() for name, array in self.model.items()}
        return model | {f"optimizer/{name}/velocity": array.copy() for name, array in self.velocity.items()}

    def view_state(self) -> State:
        return self.state()

    def view_weights(self) -> State:
        return weights_of(self.state())

    def load_state(self, state: State) -> None:
        self.velocity = {name: state[f"optimizer/{name}/velocity"].copy() for name in self.velocity}
        self.model = {name: state[f"model/{name}"].copy() for name in self.model}

    def rank_local_state(self) -> State:
        return {"model/running_mean": self.model["running_mean"].copy()}

    def load_rank_local_state(self, buffers: State) -> None:
        self.model["running_mean"] = buffers["model/running_mean"].copy()

    def parameter_count(self) -> int:
        return WIDTH * CLASSES + CLASSES


def softmax(logits: Any) -> Any:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


class Recorder:
    """A callback that keeps all events."""

    def __init__(self) -> None:
        self.events: list[events.Event] = []

    def __call__(self, event: events.Event) -> None:
        self.events.append(event)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@dataclass(frozen=True)
class Setting:
    """All that decides a training but its limits."""

    data: Data
    folder: Path
    global_batch: int = 8
    seed: int = 3
    sets: tuple[str, ...] = (UNNAMED,)  # each is validated on data.validation
    keep: int = 1000
    total_steps: int = 6
    open_adapter: Callable[[Any, Communicator, int], Any] = NumpyAdapter
    task: Task = field(default_factory=NumpyTask)
    on_corrupt: OnCorrupt = "raise"
    quarantine: Path | None = None
    callbacks: tuple[events.Callback, ...] = ()
    early_stopping: EarlyStopping = EarlyStopping()
    save_policy: SavePolicy = SavePolicy()
    summarizes_ranks: bool = False
    writers: int = 1

    def store(self) -> CheckpointStore:
        return CheckpointStore(self.folder / "checkpoints", self.keep)


@dataclass(frozen=True)
class Run:
    outcome: RunResult
    adapter: Any
    events: Recorder


def train(
    setting: Setting,
    comm: Communicator,
    limits: RunLimits,
    start: Position | None,
    state: State | None,
    asked: StopRequest = never_asked,
) -> Run:
    """One run of the real engine over real files, with real checkpoints, from `start` (None: from the beginning)."""
    adapter = setting.open_adapter(setting.task, comm, setting.seed)
    own = (state or adapter.state()) if comm.topology.is_root else None
    adapter.load_state(broadcast_state(comm, own))
    recorder = Recorder()
    source = _source(setting, setting.data.train, comm, training=True)
    engine = Engine(
        adapter=adapter,
        comm=comm,
        train=source,
        validation={name: _source(setting, setting.data.validation, comm, training=False) for name in setting.sets},
        schedule=Schedule(peak=0.1, total_steps=setting.total_steps, warmup_steps=2, shape="cosine"),
        limits=limits,
        checkpoints=CheckpointWriter(comm, setting.store(), {"seed": setting.seed}, writers=setting.writers),
        ledger=_ledger(setting, comm, source),
        callbacks=[recorder, *setting.callbacks],
        asked=asked,
        early_stopping=setting.early_stopping,
        save_policy=setting.save_policy,
        summarizes_ranks=setting.summarizes_ranks,
    )
    return Run(engine.run(start or Position(), saved=start is not None), adapter, recorder)


def _ledger(setting: Setting, comm: Communicator, source: CatalogSource) -> CoverageLedger:
    steps = source.plan(0).steps
    return CoverageLedger(comm, setting.folder / "audit", source.catalog, source.raw, steps, setting.quarantine)


def _source(setting: Setting, catalog: Catalog, comm: Communicator, *, training: bool) -> CatalogSource:
    config = DataConfig(prefetch=2, timeout=60.0, on_corrupt=setting.on_corrupt)
    return CatalogSource(catalog, setting.task, comm.topology, config, setting.global_batch, setting.seed, training)
