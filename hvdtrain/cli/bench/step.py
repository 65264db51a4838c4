"""`hvdtrain bench step`: how fast training steps are, by the protocol of Horovod's synthetic benchmark.

horovodrun -np 2 python -m hvdtrain bench step --task synthetic [--num-iters 10] [--json] [options of train]
"""

import argparse
import difflib
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hvdtrain.cli.command_parser import CommandParser, number
from hvdtrain.cli.tables import print_table
from hvdtrain.config.parser import parse_train_config
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.errors import UsageError
from hvdtrain.run.bench_step import Protocol, measure
from hvdtrain.run.job import load_task_class, open_job
from hvdtrain.task.task import TaskDefaults
from hvdtrain.topology import detect_topology

_WITHOUT_EFFECT = (
    *("--epochs", "--max-steps", "--max-time", "--output-dir", "--resume", "--init-weights", "--init-weights-exclude"),
    *("--keep-checkpoints", "--checkpoint-interval", "--log-interval", "--progress", "--report", "--log-level"),
    *("--best-metric", "--best-mode", "--early-stopping-patience", "--early-stopping-min-delta", "--dry-run"),
    "--data.validation",
)
"""Options of train about what `bench step` does not do: an epoch, validation, files. A config file may have them."""

_UNTUNED = ("--tune", "never")
"""Unless the command line says otherwise; the config of a run always says `tune: auto`. So figures can be compared. Of
two options of one name the last one counts."""

_COUNTS = {
    "--num-warmup-batches": (0, "batches that do not count"),
    "--num-batches-per-iter": (1, "batches that are timed together"),
    "--num-iters": (1, "timed iterations"),
}
"""Options of Horovod's script → least value, help."""

_SHOWN_WORKERS = 8


def run(argv: Sequence[str]) -> int:
    """Measure; returns the exit code. UsageError: an option that neither this nor train has, or that has no effect."""
    options, train_argv = _parse(argv)
    protocol = Protocol(options.num_warmup_batches, options.num_batches_per_iter, options.num_iters)
    config = parse_train_config([*_UNTUNED, *train_argv])
    topology = detect_topology(os.environ)
    kind = load_task_class(config)
    with open_job(_by_worker(config, kind.defaults), kind, topology) as (setup, comm):
        silent = options.json or not comm.topology.is_root
        report = measure(setup, comm, protocol, (lambda _: None) if silent else _say)
        if options.json and comm.topology.is_root:
            _say(json.dumps(report))
        elif comm.topology.is_root:
            _print_split(report)
    return 0


def _by_worker(config: TrainConfig, defaults: TaskDefaults) -> TrainConfig:
    """As in Horovod's script, each worker, or virtual worker, has the whole batch that is the default."""
    if config.data.mode == "pipe":
        raise UsageError(
            "--data.mode is pipe.",
            "`hvdtrain bench step` takes one batch, and would leave whoever fills the pipes with the rest.",
            "give --data.mode file, or --task synthetic.",
        )
    if config.batch_size is not None or config.global_batch_size is not None:
        return config
    if config.virtual_workers is not None:
        return replace(config, global_batch_size=defaults.global_batch_size * config.virtual_workers)
    return replace(config, batch_size=defaults.global_batch_size)


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """This command's own options, and what is train's."""
    parser = CommandParser(
        "hvdtrain bench step",
        "Nothing was measured.",
        description="Time training steps on one batch as Horovod's synthetic benchmark does, on as many workers as the "
        "launcher started. Options of `hvdtrain train` that change a step can be used too: --task, --model, "
        "--batch-size, --precision, --compression and so on. With --tune auto, buckets and threads are chosen first, "
        "as at the start of a long run.",
    )
    for option, (least, what) in _COUNTS.items():
        parser.add_argument(option, type=number(option, least), default=10, metavar="N", help=f"{what} (default: 10)")
    parser.add_argument("--json", action="store_true", help="print one JSON object in one line")
    options, rest = parser.parse_with_train(argv)
    for option in (token.partition("=")[0] for token in rest if token.startswith("--")):
        _require_use(option)
    return options, rest


def _require_use(option: str) -> None:
    """Refuse an option of train's that would do nothing here, and one of this command's that is misspelt."""
    if option in _WITHOUT_EFFECT:
        raise UsageError(
            f"{option} is given to `hvdtrain bench step`.",
            "It measures steps on one batch: there are no epochs, no validation and no run folder.",
            f"leave {option} out; {', '.join(_COUNTS)} say how much is measured.",
        )
    near = difflib.get_close_matches(option, [*_COUNTS, "--json"], 1, 0.8)
    if near:
        raise UsageError(f"There is no option {option}.", "Nothing was measured.", f"did you mean {near[0]!r}?")


def _print_split(report: dict[str, Any]) -> None:
    workers = sorted(enumerate(report["seconds_per_step"]), key=lambda numbered: -numbered[1]["compute"])
    shown = workers[:_SHOWN_WORKERS]
    rows = [
        [str(rank), *(f"{1e3 * split[key]:.2f}" for key in ("step", "compute", "allreduce"))] for rank, split in shown
    ]
    whose = "" if len(shown) == len(workers) else f", the {len(shown)} of {len(workers)} workers that compute longest"
    _say("")
    print_table(f"milliseconds a step{whose}", ["rank", "step", "compute", "waiting for allreduce"], rows)
    if report["skipped_updates"]:
        _say(f"{report['skipped_updates']} updates were skipped, as their scaled gradients were not finite")


def _say(line: str) -> None:
    print(line, flush=True)
