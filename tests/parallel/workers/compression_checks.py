"""Gradients through every wire, whatever the framework; then the digits, trained with each. See test_compression.py."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hvdtrain.adapters.chosen_framework import bind_device_and_threads
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.open import open_communicator
from hvdtrain.config.parser import parse_train_config
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.engine.state_sync import average_rank_local_state, broadcast_state
from hvdtrain.engine.stop_vote import never_asked
from hvdtrain.errors import UsageError
from hvdtrain.models.keras_import import prepare_keras
from hvdtrain.run.prepare import prepare
from hvdtrain.run.training import train
from hvdtrain.tasks.task_registry import load_task
from hvdtrain.topology import Topology, detect_topology

Arrays = list[NDArray[np.float32]]

SHAPES = [(9, 7), (5,), (4, 3, 2, 3), (), (1, 6)]
"""Of the parameters; with rank 2 the first and the third travel as factors."""

STEPS_BEFORE, STEPS_AFTER = 5, 3
FROZEN_STEPS = range(2, 6)


class Exchanging(Protocol):
    """Parameters of `SHAPES` and an exchange of their gradients."""

    exchange: Any

    def update(self, parts: Sequence[Arrays]) -> Arrays:
        """What the optimizer would see. `parts`: gradients of this rank's micro batches, with its shares in them."""
        ...

    def scaled_update(self, gradients: Arrays) -> Arrays:
        """An update with loss scaling of weights that are 0: whether it was made, and the weights after it."""
        ...


Open = Callable[[Topology, TrainingOptions], Exchanging]


class Checks:
    """Runs cases and keeps what went in and came out, by "case/what/parameter"."""

    def __init__(self, open_: Open, comm: Communicator) -> None:
        self._open, self._comm = open_, comm
        self.arrays: dict[str, NDArray[Any]] = {}

    def keep(self, name: str, arrays: Arrays) -> None:
        self.arrays |= {f"{name}/{place}": array for place, array in enumerate(arrays)}

    def exchanging(self, **options: Any) -> Exchanging:
        return self._open(self._comm.topology, TrainingOptions(**options))

    def once(self, case: str, gradients: Arrays, **options: Any) -> None:
        self.keep(f"{case}/in", gradients)
        self.keep(f"{case}/out", self.exchanging(**options).update([gradients]))

    def own(self, seed: int) -> Arrays:
        """Gradients of this rank: its part of a mean over all."""
        random = np.random.default_rng([seed, self._comm.topology.rank])
        return [np.asarray(random.standard_normal(shape) / self._comm.topology.size, np.float32) for shape in SHAPES]

    def filled(self, value: float) -> Arrays:
        return [np.full(shape, value, np.float32) for shape in SHAPES]

    def sums(self) -> None:
        for op in ("average", "sum"):
            for compression in ("none", "fp16", "bf16"):
                self.once(f"{compression}-{op}", self.own(1), compression=compression, reduce_op=op)
            # 20,000 of each rank: their mean over the global batch is in float16's range, the sum of the means is not.
            self.once(f"fp16-{op}-headroom", self.filled(2e4), compression="fp16", reduce_op=op)
        for value in (1e30, 1e-30):
            self.once(f"bf16-{value}", self.filled(value), compression="bf16")
            self.once(f"fp16-{value}", self.filled(value), compression="fp16")

    def overflow(self) -> None:
        last = self._comm.topology.rank == self._comm.topology.size - 1
        for case, value in (("small", 1e3), ("large", 1e6)):
            gradients = self.filled(value if last else 1.0)
            self.keep(f"scaled-{case}/out", self.exchanging(compression="fp16").scaled_update(gradients))

    def micro_batches(self) -> None:
        for compression in ("none", "fp16", "bf16", "powersgd"):
            exchanging = self.exchanging(compression=compression)
            self.keep(f"{compression}-micro/in", [a + b for a, b in zip(self.own(2), self.own(3), strict=True)])
            self.keep(f"{compression}-micro/out", exchanging.update([self.own(2), self.own(3)]))

    def adasum(self) -> None:
        size, rank = self._comm.topology.size, self._comm.topology.rank
        if size & (size - 1):
            return
        self.once("adasum", self.own(4), reduce_op="adasum")
        self.once("adasum-equal", self.filled(0.25 / size), reduce_op="adasum")
        orthogonal = [np.zeros(shape, np.float32) for shape in SHAPES]
        for gradient in orthogonal:
            gradient.reshape(-1)[rank % gradient.size] = rank + 1.0
        self.once("adasum-orthogonal", orthogonal, reduce_op="adasum")

    def powersgd(self, case: str, **options: Any) -> None:
        """Some updates, a checkpoint, some more; and these again by others who take up the checkpoint."""
        exchanging = self.exchanging(compression="powersgd", powersgd_rank=2, **options)
        for step in range(STEPS_BEFORE):
            self.step(case, step, exchanging)
        exchange = exchanging.exchange
        average_rank_local_state(
            self._comm,
            SimpleNamespace(  # the part of an adapter that is asked
                stage=None,
                worker_states=None,
                rank_local_state=exchange.rank_local_state,
                load_rank_local_state=exchange.load_rank_local_state,
            ),
        )
        state = exchanging.exchange.state()
        self.arrays |= {f"{case}/state/{name}": array for name, array in state.items()}
        for step in range(STEPS_BEFORE, STEPS_BEFORE + STEPS_AFTER):
            self.step(case, step, exchanging)
        resumed = self.exchanging(compression="powersgd", powersgd_rank=2, **options)
        resumed.exchange.load_state(broadcast_state(self._comm, state if self._comm.topology.is_root else None))
        for step in range(STEPS_BEFORE, STEPS_BEFORE + STEPS_AFTER):
            self.step(f"{case}-resumed", step, resumed)

    def step(self, case: str, step: int, exchanging: Exchanging) -> None:
        gradients = self.own(10 + step)
        self.keep(f"{case}/in/{step}", gradients)
        self.keep(f"{case}/out/{step}", exchanging.update([gradients]))


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except UsageError as error:
        return str(error)
    return ""


def run(framework: str, folder: Path, open_: Open, more: Callable[[Checks], None]) -> None:
    """All checks, then the trainings in FOLDER/cases.json: {name: [option, …]}."""
    prepare_keras()
    topology = detect_topology(os.environ)
    bind_device_and_threads(framework, topology)
    comm = open_communicator(framework, topology)
    checks = Checks(open_, comm)
    refused = ""
    if topology.is_distributed:
        checks.sums()
        checks.overflow()
        checks.micro_batches()
        checks.adasum()
        more(checks)
        if topology.size & (topology.size - 1):
            refused = refusal(lambda: checks.exchanging(reduce_op="adasum"))
    checks.powersgd("powersgd")
    checks.powersgd("powersgd-sum", reduce_op="sum")
    np.savez(folder / f"rank_{topology.rank}.npz", **checks.arrays)
    (folder / f"rank_{topology.rank}.json").write_text(json.dumps(refused))
    for name, flags in json.loads((folder / "cases.json").read_text()).items():
        _train(comm, name, [*flags, "--framework", framework, "--output-dir", str(folder / name)])
    comm.close()


def _train(comm: Communicator, name: str, flags: list[str]) -> None:
    config = parse_train_config(flags)
    kind = load_task(config.task, config.framework)
    code = train(prepare(config, kind, comm), comm, time.perf_counter(), never_asked).code
    if code != 0:
        raise SystemExit(f"{name} ended with code {code}")
