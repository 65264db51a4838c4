"""Run folders without a training, by what writes those of real runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from hvdtrain.algorithms.early_stopping import Best
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.config.yaml_file import dump_config
from hvdtrain.engine import events
from hvdtrain.engine.events import Event
from hvdtrain.engine.limits import RunResult
from hvdtrain.files import open_lines, write_atomically, write_json
from hvdtrain.history.heartbeats import Heard, Heartbeat, heartbeat_file, host_content, host_file
from hvdtrain.measured import Seconds
from hvdtrain.run.result import Totals, environment, result
from hvdtrain.run.sinks.metrics_file import MetricsFile
from hvdtrain.topology import Topology


def logged(step: int, loss: float = 0.5, ranks: int = 2) -> events.Logged:
    return events.Logged(
        epoch=0,
        step=step,
        lr=0.1,
        samples=32,
        samples_per_second=1234.0,
        values={"loss": loss, "accuracy": 0.75},
        rank_seconds=(Seconds(0.1, 0.2, 0.1),) * ranks,
    )


@dataclass
class FakeRun:
    """Writes into `folder` what a run of `ranks` would have written."""

    folder: Path
    ranks: int = 2

    @classmethod
    def begun(cls, folder: Path, config: TrainConfig | None = None, ranks: int = 2) -> Self:
        """A run that has just started: config, environment, the first line of metrics."""
        folder.mkdir(parents=True, exist_ok=True)
        run = cls(folder, ranks)
        topology = replace(Topology.single(), size=ranks, local_size=ranks, launcher="horovodrun")
        write_atomically(folder / "config.yaml", dump_config(config or TrainConfig(global_batch_size=32)).encode())
        write_json(folder / "env.json", environment(topology))
        run.events(events.RunStarted(0, 100, 50, 2))
        return run

    def events(self, *told: Event) -> Self:
        with open_lines(self.folder / "metrics.jsonl") as file:
            metrics = MetricsFile(file, begun=1000.0)
            for event in told:
                metrics(event)
        return self

    def ended(self, finished: bool = True, accuracy: float = 0.9, weights: str = "ab" * 32, **changed: Any) -> Self:
        """As a run ends: the last events and result.json. Args: `changed`: keys of result.json."""
        best = Best("loss", 0.25, 100, 1)
        values = {"loss": 0.25, "accuracy": accuracy}
        outcome = RunResult(100, 2, 3200, finished, values, weights, best=best)
        totals = Totals(self.ranks)
        totals(logged(1, ranks=self.ranks))
        about = {"framework": "torch", "task": "digits", "world_size": self.ranks, "global_batch_size": 32, "tuned": {}}
        write_json(self.folder / "result.json", {**result(about, outcome, totals, (9.0, 2.0), 1000), **changed})
        evaluated = events.Evaluated(1, 100, 359, 0.1, values, best)
        return self.events(logged(100, ranks=self.ranks), evaluated, events.RunEnded(100, 3200, finished))

    def beats(self, *beats: Heartbeat) -> Self:
        for beat in beats:
            path = heartbeat_file(self.folder, beat.rank)
            path.parent.mkdir(exist_ok=True)
            write_json(path, vars(beat))
        return self

    def beats_of_host(self, *beats: Heartbeat, writer: int | None = None, age: float = 0.0) -> Self:
        """Args: `writer`: the rank that writes, by default the first one; `age`: of all of them, in seconds."""
        path = host_file(self.folder, beats[0].rank if writer is None else writer)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(host_content(Heard(beat, age) for beat in beats))
        return self

    def log(self, rank: int, lines: Sequence[bytes], torn: bytes = b"") -> Self:
        (self.folder / "logs").mkdir(exist_ok=True)
        (self.folder / "logs" / f"rank_{rank}.log").write_bytes(b"".join(line + b"\n" for line in lines) + torn)
        return self

    def audit(self, fingerprint: str) -> Self:
        (self.folder / "audit").mkdir(exist_ok=True)
        line = {"event": "started", "step": 0, "records": 1438, "data": fingerprint}
        (self.folder / "audit" / "ledger.jsonl").write_text(json.dumps(line) + "\n")
        return self
