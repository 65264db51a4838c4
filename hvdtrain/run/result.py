"""What a run says of itself: five lines at its start, env.json, and result.json at its end."""

import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from hvdtrain.adapters.chosen_framework import device_kind
from hvdtrain.algorithms.quantile_sketch import Quantiles
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.rank_reduction import reduce_ranks
from hvdtrain.config.training_options import describe_optimizer, non_default_options
from hvdtrain.config.validation_options import early_stopping_of
from hvdtrain.engine import events
from hvdtrain.engine.events import Event
from hvdtrain.engine.limits import RunResult
from hvdtrain.engine.summarized_reading import seconds_columns, summary_of
from hvdtrain.history.reading import JsonLines
from hvdtrain.measured import BESIDE, INSIDE, STEP, Seconds, SummarizedSeconds
from hvdtrain.rank_summary import RankSummary
from hvdtrain.run.prepare import RunSetup
from hvdtrain.topology import Topology
from hvdtrain.version import versions

PARTS: Final = (*STEP, *INSIDE, *BESIDE)
"""Those that make up a step's time, then parts of "compute" and what happens beside it."""

_DIGITS: Final = 6


class Totals:
    """Sums over the run, for result.json and the closing table.

    Where events summarize ranks, only each rank itself knows its sums until `gather` has made a summary of them.
    """

    def __init__(self, ranks: int) -> None:
        self.rank_seconds = [Seconds()] * ranks
        self.own = Seconds()  # of this rank, where events summarize ranks
        self.summary: SummarizedSeconds | None = None  # then: of all ranks, after `gather`
        self.validation_seconds = 0.0
        self.checkpoint_seconds = 0.0
        self.samples = 0
        self.memory: dict[str, list[int] | RankSummary] = {}
        self.first_loss: float | None = None

    def __call__(self, event: Event) -> None:
        match event:
            case events.Logged():
                if event.summary is None:
                    self.rank_seconds = [a + b for a, b in zip(self.rank_seconds, event.rank_seconds, strict=True)]
                else:
                    self.own += event.summary.own
                self.samples += event.samples
                self._note_memory(resident=event.memory, device=event.device_memory)
                if event.step == 1:
                    self.first_loss = event.values["loss"]
            case events.Evaluated(seconds=seconds, rank_seconds=ranks):
                self.validation_seconds += seconds
                if event.own_seconds is not None:
                    self.own += Seconds(validation=event.own_seconds)
                    return
                validations = [Seconds(validation=validation) for validation in ranks]
                self.rank_seconds = [a + b for a, b in zip(self.rank_seconds, validations, strict=True)]
            case events.CheckpointDurable(seconds=seconds):
                self.checkpoint_seconds += seconds

    def gather(self, comm: Communicator, hosts: Sequence[str]) -> None:
        """Make the summary of all ranks, where events summarize them. Collective; rank r is on `hosts[r]`."""
        columns = seconds_columns(self.own)
        values = list(columns.values())
        reduced = reduce_ranks(comm, values, "hvdtrain.end.seconds", named=range(len(values)), hosts=hosts)
        self.summary = summary_of(self.own, dict(zip(columns, reduced.summaries, strict=True)))

    def _note_memory(self, **ranks: Sequence[int] | RankSummary) -> None:
        for kind, numbers in ranks.items():
            known = self.memory.get(kind)
            if isinstance(numbers, RankSummary):  # that of the line in which a rank had the most
                self.memory[kind] = numbers if not isinstance(known, RankSummary) else max(known, numbers, key=_most)
            elif numbers:
                before = known if isinstance(known, list) else [0] * len(numbers)
                self.memory[kind] = [max(pair) for pair in zip(before, numbers, strict=True)]

    def resume_from(self, metrics: Path, step: int) -> None:
        """Read what earlier processes of this run wrote about its first step, if it continues after update `step`."""
        if step == 0:
            return
        for line in JsonLines(metrics, (b'"step": 1,',)):
            if line.get("split") == "train" and line["step"] == 1:
                self.first_loss = line.get("loss")

    @property
    def samples_per_second(self) -> float:
        """Training samples a second over all ranks, without validation and checkpoints."""
        if self.summary is not None:
            slowest = self.summary.step.max
        else:
            slowest = max(s.data + s.compute + s.allreduce for s in self.rank_seconds)
        return self.samples / slowest if slowest > 0 else 0.0

    def mean(self, part: str) -> float:
        """Seconds of a part of the time, over ranks."""
        if self.summary is not None:
            return self.summary.parts[part].mean if part in self.summary.parts else 0.0
        total: float = sum(getattr(rank, part) for rank in self.rank_seconds)
        return total / len(self.rank_seconds)


def _most(ranks: RankSummary) -> float:
    return ranks.max


def describe(setup: RunSetup, comm: Communicator, parameters: int, folder: Path | None = None) -> list[str]:
    """What is trained, in five lines: nothing that changes the numbers is left unsaid. `parameters` are trainable."""
    config, schedule, plan, installed = setup.config, setup.schedule, setup.train.plan(0), versions()
    framework = setup.task.framework
    optimizer = "the task's own optimizer" if config.optimizer is None else describe_optimizer(config)
    packages = [f"Python {installed['python']}", f"hvdtrain {installed['hvdtrain']}"]
    if comm.topology.is_distributed:
        packages.append(f"Horovod {installed.get('horovod', '').partition('+')[0]}")
    held = [f"{source.plan(0).num_records:,} {name}".rstrip() for name, source in setup.validation.items()] or ["no"]
    return [
        f"hvdtrain: {config.task} in {framework} {installed.get(framework, '')} on {device_kind(framework)}, "
        f"{_workers(comm.topology)}",
        f"model: {'; '.join([f'{parameters:,} parameters', optimizer, *non_default_options(config)])}; "
        f"seed {config.seed}",
        f"data: {plan.num_records:,} records, global batch {plan.global_batch}, {plan.steps} steps × {setup.epochs} "
        f"epochs, shuffle {config.data.shuffle}; {', '.join(held)} records for validation{_best(setup)}",
        f"lr: {schedule.peak:g} (scaling {config.lr_scaling}), warm-up {schedule.warmup_steps} steps, then "
        f"{schedule.describe()}",
        "; ".join([*([] if folder is None else [f"run folder: {shown_path(folder)}"]), ", ".join(packages)]),
    ]


def _best(setup: RunSetup) -> str:
    """Which one is the best, where it was chosen by name."""
    if setup.config.best_metric is None:
        return ""
    compared = early_stopping_of(setup.config, setup.validation)
    return f", of which the {'lowest' if compared.mode == 'min' else 'highest'} {compared.metric} is the best"


def _workers(topology: Topology) -> str:
    """How many, who started them, and what says so: "2 workers by horovodrun on 1 node (HOROVOD_SIZE=2)"."""
    source = topology.source.get("size", "")
    decided_by = f" ({source.removeprefix('default: ')})" if source else ""
    if topology.launcher == "single":
        return f"1 worker{decided_by}"
    workers = "1 worker" if topology.size == 1 else f"{topology.size} workers"
    nodes = "1 node" if topology.num_nodes == 1 else f"{topology.num_nodes} nodes"
    return f"{workers} by {topology.launcher} on {nodes}{decided_by}"


def shown_path(path: Path) -> str:
    """As people would write it: relative to the current folder if it is inside."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def environment(topology: Topology) -> dict[str, Any]:
    """Content of env.json. Only named facts, never the environment itself: that may hold secrets."""
    facts = {k: v for k, v in asdict(topology).items() if k != "source"}
    return {"versions": versions(), "platform": platform.platform(), "topology": facts, "argv": sys.argv[1:]}


def result(
    about: dict[str, Any], outcome: RunResult, totals: Totals, seconds: tuple[float, float], parameters: int
) -> dict[str, Any]:
    """Content of result.json.

    Times are in seconds; "data", "compute", "allreduce" and the parts of "compute" are means over ranks. "memory_bytes"
    is the most of each rank at a line of metrics: of its process, and of its GPU.

    `about` is what checkpoints say of the run, and `totals` are of this process's part of it.
    """
    total, start = seconds  # of the whole run, and of these until training began
    mean = {part: of_part for part in PARTS if (of_part := totals.mean(part)) or part in STEP}
    return {
        "status": "finished" if outcome.finished else "stopped",
        **{key: about[key] for key in ("framework", "task", "world_size", "global_batch_size")},
        "tuned": about["tuned"],
        "steps": outcome.step,
        "epochs": outcome.epochs,
        "samples_seen": outcome.samples_seen,
        "metrics": outcome.metrics,
        "best": asdict(outcome.best) if outcome.best is not None else None,
        "stopped_early": asdict(outcome.stopped_early) if outcome.stopped_early is not None else None,
        "first_step_loss": totals.first_loss,
        "samples_per_second": round(totals.samples_per_second, 1),
        "seconds": {
            "total": total,
            "start": start,
            **mean,
            "checkpoint": totals.checkpoint_seconds,
            "validation": totals.validation_seconds,
            "ranks": _ranks(totals),
        },
        "step_seconds": _step_seconds(outcome),
        "memory_bytes": {
            kind: ranks.as_json() if isinstance(ranks, RankSummary) else ranks for kind, ranks in totals.memory.items()
        },
        "stragglers": [asdict(straggler) for straggler in outcome.stragglers],
        "parameters": parameters,
        "weights": {"sha256": outcome.weights_hash, "equal_on_all_ranks": True},
        "versions": versions(),
    }


def _ranks(totals: Totals) -> Any:
    """A list of all ranks, or their summary."""
    if totals.summary is None:
        return [rank.known() for rank in totals.rank_seconds]
    return totals.summary.as_json(_DIGITS, every_name=True)


def _step_seconds(outcome: RunResult) -> dict[str, Any]:
    """Of each rank; or, where ranks are summarized, of "ranks" together."""
    if outcome.step_summaries:
        return {
            "ranks": {
                name: {quantile: of_ranks.as_json(7) for quantile, of_ranks in quantiles.items()}
                for name, quantiles in outcome.step_summaries.items()
            }
        }
    return {
        str(rank): {name: _rounded(quantiles) for name, quantiles in times.items()}
        for rank, times in enumerate(outcome.step_times)
    }


def _rounded(quantiles: Quantiles) -> dict[str, float]:
    return {name: round(value, 7) for name, value in asdict(quantiles).items()}
