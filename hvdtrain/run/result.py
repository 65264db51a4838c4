"""The results of a run for people and programs: result.json, env.json, and the closing table."""

import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from hvdtrain.adapters.open import device_kind
from hvdtrain.algorithms.quantile_sketch import Quantiles
from hvdtrain.comm.communicator import Communicator
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.config.training_options import describe_optimizer, non_default_options
from hvdtrain.engine import events
from hvdtrain.engine.events import Event, Seconds, StoppedEarly
from hvdtrain.engine.limits import RunResult
from hvdtrain.history.json_lines import JsonLines
from hvdtrain.run.prepare import RunSetup
from hvdtrain.topology import Topology
from hvdtrain.version import versions

PARTS: Final = (
    *("data", "compute", "allreduce"),
    *("host_to_device", "forward", "backward", "optimizer", "allreduce_hidden"),
)
"""Those that make up a step's time, then parts of "compute" and what happens beside it."""

_MOST_ROWS: Final = 4  # of stragglers, in the table
_BORDERS: Final = len("│  │  │")


class Totals:
    """Sums over the run, for result.json and the closing table."""

    def __init__(self, ranks: int) -> None:
        self.rank_seconds = [Seconds()] * ranks
        self.validation_seconds = 0.0
        self.checkpoint_seconds = 0.0
        self.samples = 0
        self.memory: dict[str, list[int]] = {}
        self.first_loss: float | None = None

    def __call__(self, event: Event) -> None:
        match event:
            case events.Logged():
                self.rank_seconds = [a + b for a, b in zip(self.rank_seconds, event.rank_seconds, strict=True)]
                self.samples += event.samples
                self._note_memory(resident=event.memory, device=event.device_memory)
                if event.step == 1:
                    self.first_loss = event.values["loss"]
            case events.Evaluated(seconds=seconds, rank_seconds=ranks):
                self.validation_seconds += seconds
                own = [Seconds(validation=validation) for validation in ranks]
                self.rank_seconds = [a + b for a, b in zip(self.rank_seconds, own, strict=True)]
            case events.CheckpointDurable(seconds=seconds):
                self.checkpoint_seconds += seconds

    def _note_memory(self, **ranks: Sequence[int]) -> None:
        for kind, numbers in ranks.items():
            if numbers:
                known = self.memory.get(kind, [0] * len(numbers))
                self.memory[kind] = [max(pair) for pair in zip(known, numbers, strict=True)]

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
        slowest = max(s.data + s.compute + s.allreduce for s in self.rank_seconds)
        return self.samples / slowest if slowest > 0 else 0.0


def describe(setup: RunSetup, comm: Communicator, parameters: int, folder: Path | None = None) -> list[str]:
    """What is trained, in five lines: nothing that changes the numbers is left unsaid.

    Args:
        parameters: trainable parameters of the model.
        folder: of the run, if there is one.
    """
    config, schedule, plan, installed = setup.config, setup.schedule, setup.train.plan(0), versions()
    framework = setup.task.framework
    optimizer = "the task's own optimizer" if config.optimizer is None else describe_optimizer(config)
    packages = [f"Python {installed['python']}", f"hvdtrain {installed['hvdtrain']}"]
    if comm.topology.is_distributed:
        packages.append(f"Horovod {installed.get('horovod', '').partition('+')[0]}")
    held = "no" if setup.validation is None else f"{setup.validation.plan(0).num_records:,}"
    return [
        f"hvdtrain: {config.task} in {framework} {installed.get(framework, '')} on {device_kind(framework)}, "
        f"{_workers(comm.topology)}",
        f"model: {'; '.join([f'{parameters:,} parameters', optimizer, *non_default_options(config)])}; "
        f"seed {config.seed}",
        f"data: {plan.num_records:,} records, global batch {plan.global_batch}, {plan.steps} steps × {setup.epochs} "
        f"epochs, shuffle {config.data.shuffle}; {held} records for validation",
        f"lr: {schedule.peak:g} (scaling {config.lr_scaling}), warm-up {schedule.warmup_steps} steps, then "
        f"{schedule.describe()}",
        "; ".join([*([] if folder is None else [f"run folder: {shown_path(folder)}"]), ", ".join(packages)]),
    ]


def _workers(topology: Topology) -> str:
    """How many, who started them, and what says so: "2 workers by horovodrun on 1 node (HOROVOD_SIZE=2)"."""
    source = topology.source.get("size", "")
    told = f" ({source.removeprefix('default: ')})" if source else ""
    if topology.launcher == "single":
        return f"1 worker{told}"
    workers = "1 worker" if topology.size == 1 else f"{topology.size} workers"
    nodes = "1 node" if topology.num_nodes == 1 else f"{topology.num_nodes} nodes"
    return f"{workers} by {topology.launcher} on {nodes}{told}"


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
    """Content of result.json. Times are in seconds; "data", "compute", "allreduce" and the parts of "compute" are means
    over ranks. "memory_bytes" is the most of each rank at a line of metrics: of its process, and of its GPU.

    Args:
        about: what the run is: framework, task, world size, global batch size, what was tuned.
        outcome: what the engine returned.
        totals: sums over this process's part of the run.
        seconds: of the whole run, and of these until training began.
        parameters: trainable parameters of the model.
    """
    total, start = seconds
    mean = {
        part: seconds
        for part in PARTS
        if (seconds := sum(getattr(rank, part) for rank in totals.rank_seconds) / len(totals.rank_seconds))
        or part in PARTS[:3]
    }
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
            "ranks": [rank.told() for rank in totals.rank_seconds],
        },
        "step_seconds": {
            str(rank): {name: _rounded(quantiles) for name, quantiles in times.items()}
            for rank, times in enumerate(outcome.step_times)
        },
        "memory_bytes": totals.memory,
        "stragglers": [asdict(straggler) for straggler in outcome.stragglers],
        "parameters": parameters,
        "weights": {"sha256": outcome.weights_hash, "equal_on_all_ranks": True},
        "versions": versions(),
    }


def print_table(result: dict[str, Any], folder: str, report: str | None = None, columns: int = 100) -> None:
    """The closing table on standard output, at most `columns` wide; below it, paths that are too long for it.

    Args:
        folder, report: the paths of the run folder and of its report, or what makes one.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table

    seconds = result["seconds"]
    table = Table(show_header=False, title=f"{result['task']} in {result['framework']}: {result['status']}")
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in result["metrics"].items():
        table.add_row(f"validation {name}" if result["best"] else name, f"{value:.4f}")
    if best := result["best"]:
        told = f"step {best['step']}, of epoch {best['epoch'] + 1}: {best['metric']} {best['value']:.4f}"
        table.add_row("best checkpoint", told)
    if result["stopped_early"]:
        table.add_row("stopped early", StoppedEarly(**result["stopped_early"]).reason)
    table.add_row("workers", f"{result['world_size']}, global batch {result['global_batch_size']}")
    table.add_row("speed", f"{result['samples_per_second']:,.0f} samples/s")
    table.add_row("time", f"{seconds['total']:.1f} s, of which {seconds['start']:.1f} s to start")
    table.add_row("a step's time", _step_shares(seconds))
    for straggler in result.get("stragglers", [])[:_MOST_ROWS]:
        table.add_row("slow", _slow(straggler))
    if result.get("goodput", {}).get("restarts"):
        table.add_row("restarts", _restarts(result["goodput"]))
    table.add_row("parameters", f"{result['parameters']:,}")
    table.add_row("weights", f"equal on all workers ({result['weights']['sha256'][:12]})")
    paths = {"run folder": folder} | ({} if report is None else {"report": report})
    beside = max(len(str(name)) for name in [*table.columns[0].cells, *paths]) + _BORDERS
    below = {name: path for name, path in paths.items() if beside + cell_len(path) > columns}
    for name in (name for name in paths if name not in below):
        table.add_row(name, paths[name])
    # No colours: mpirun shows workers a terminal even where there is none.
    Console(width=columns, color_system=None).print(table)
    for name, path in below.items():
        print(f"{name}: {path}")  # which the terminal breaks, so that it can be copied


def _restarts(goodput: dict[str, Any]) -> str:
    lost, share = goodput["lost_steps"], goodput["share"]
    return f"{len(goodput['restarts'])}, {lost} steps were trained again; {share:.0%} of all time trained these weights"


def _step_shares(seconds: dict[str, Any]) -> str:
    total = sum(seconds[part] for part in PARTS[:3])
    if not total:
        return "no step was trained"
    inner = [f"{name} {seconds[name] / total:.0%}" for name in ("forward", "backward", "optimizer") if name in seconds]
    compute = f" ({', '.join(inner)})" if inner else ""
    shares = [f"{part} {seconds[part] / total:.0%}{compute if part == 'compute' else ''}" for part in PARTS[:3]]
    return ", ".join(shares)


def _slow(straggler: dict[str, Any]) -> str:
    host = f" on {straggler['host']}" if straggler["host"] else ""
    who = "the network" if straggler["rank"] is None else f"rank {straggler['rank']}{host}"
    by = f", slower by {straggler['slower_by']:.0%}" if straggler["slower_by"] else ""
    waited = f"others waited {straggler['share_of_time_others_waited']:.0%} of their time"
    return f"{who}: {straggler['cause']}{by}; {waited}"


def _rounded(quantiles: Quantiles) -> dict[str, float]:
    return {name: round(value, 7) for name, value in asdict(quantiles).items()}


def how_to_continue(config: TrainConfig, folder: Path) -> str:
    """The end of a sentence: what to start, where `folder` is the run's."""
    changed = [] if config.output_dir else [f"--output-dir {folder}"]
    if config.resume != "auto":  # another value would be refused, as the folder now holds a run
        changed.append("--resume auto")
    return " ".join(["start the same command again", *(["with"] if changed else []), *changed])
