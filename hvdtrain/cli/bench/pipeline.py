"""`hvdtrain bench pipeline`: a model on one device, split naively, and pipelined with micro batches of several sizes.

horovodrun -np 2 python -m hvdtrain bench pipeline --model resnet50 --split-sizes 1,3,5,8,10,12,20,40,60
hvdtrain bench pipeline --parallel.stages 2 --parallel.devices cuda:0,cuda:1 --model resnet50
"""

import argparse
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hvdtrain.cli.command_parser import CommandParser, number_list, positive
from hvdtrain.cli.tables import print_table
from hvdtrain.comm.communicator import Communicator
from hvdtrain.config.parallel_options import ParallelOptions
from hvdtrain.config.parser import parse_train_config
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.errors import UsageError
from hvdtrain.experiments.bars import drawn_bars
from hvdtrain.plan.check_predictions import TimedWay, in_turns, times_alone
from hvdtrain.plan.picture_files import write_results
from hvdtrain.run.job import load_task_class, open_job
from hvdtrain.run.prepare import with_defaults
from hvdtrain.task.task import Task
from hvdtrain.topology import detect_topology
from hvdtrain.version import versions

_SIZES = (1, 3, 5, 8, 10, 12, 20, 40, 60)
"""Those of PyTorch's tutorial on model parallel ResNet-50."""


@dataclass(frozen=True)
class Arm:
    """One way to train the batch.

    Attributes:
        name: for people.
        split_size: records of a micro batch; None: the whole batch.
        seconds: of a step in each run.
        records: of the batch.
    """

    name: str
    split_size: int | None
    seconds: Sequence[float]
    records: int

    @property
    def rates(self) -> list[float]:
        """Records a second in each run."""
        return [self.records / one for one in self.seconds]


def run(argv: Sequence[str]) -> int:
    """Measure; returns the exit code. Raises UsageError (one worker without devices, or an option that cannot be)."""
    options, train_argv = _parse(argv)
    topology = detect_topology(os.environ)
    config = _of_stages(parse_train_config(train_argv), topology.size)
    kind = load_task_class(config)
    config = with_defaults(config, kind.defaults, config.parallel.replicas_of(topology.size))
    with open_job(config, kind, topology) as (setup, comm):
        arms = list(_measured(config, kind, comm, options, setup.task.smallest_slice))
        if comm.topology.is_root:
            _tell(arms, config, options.out)
    return 0


def _of_stages(config: TrainConfig, workers: int) -> TrainConfig:
    if config.framework == "tensorflow":
        raise UsageError(
            "--framework is tensorflow.",
            "torch models can be divided into stages.",
            "give --framework torch.",
        )
    if config.parallel.stages == 1 and workers == 1:
        raise UsageError(
            "This is the only worker, and --parallel.devices is not given.",
            "A model is split over several workers, or over several devices of one.",
            "start it with horovodrun -np 2, or give --parallel.stages 2 --parallel.devices cuda:0,cuda:1.",
        )
    parallel = config.parallel if config.parallel.stages > 1 else ParallelOptions(workers)
    task = "synthetic" if config.task == "digits" else config.task
    return replace(config, task=task, parallel=replace(parallel, micro_batches=1), epochs=1)


def _measured(
    config: TrainConfig, kind: type[Task], comm: Communicator, options: argparse.Namespace, smallest: int
) -> Iterator[Arm]:
    """All arms, one after the other. Collective. Args: `smallest`: records that the model needs in a micro batch."""
    records = config.global_batch_size or 1  # see `with_defaults`
    whole = replace(config, parallel=ParallelOptions())
    if comm.topology.is_root:
        ways = 2 + len(options.split_sizes)
        print(f"{ways} ways, each for about {options.seconds:g} s after some steps to warm up", flush=True)

    def arm(name: str, size: int | None, one: TrainConfig, alone: bool = False) -> Arm:
        if alone:
            times = times_alone(one, kind, comm, options.seconds)
        else:
            (times,) = in_turns([TimedWay(one, kind, comm)], options.seconds)
        if comm.topology.is_root:
            print(f"{name}: {statistics.median(times):.3f} s a step", flush=True)
        return Arm(name, size, times, records)

    yield arm("one device", None, whole, alone=comm.topology.is_distributed)
    yield arm("naive split", None, config)
    own = records // config.parallel.replicas_of(comm.topology.size)
    for size in options.split_sizes:
        count = max(1, own // size)
        if size > own or own // count < smallest:
            if comm.topology.is_root:
                print(f"micro batches of {size} records are left out: the model needs {smallest}, and there are {own}")
            continue
        yield arm(f"pipelined, {size}", size, replace(config, parallel=replace(config.parallel, micro_batches=count)))


def _tell(arms: Sequence[Arm], config: TrainConfig, folder: Path) -> None:
    base = statistics.median(arms[0].rates)
    rows = []
    for arm in arms:
        rate, spread = statistics.median(arm.rates), statistics.stdev(arm.rates)
        rows.append([arm.name, f"{rate:,.1f}", f"± {1.96 * spread:,.1f}", f"{rate / base - 1:+.0%}"])
    print_table("records a second", ["way", "median", "1.96 std", "against one device"], rows)
    found: dict[str, Any] = {"arms": [asdict(arm) for arm in arms], "config": asdict(config), "versions": versions()}
    title = f"{config.model or config.task} in {config.parallel.stages} stages: records a second"
    print(write_results(folder, "pipeline", found, drawn_bars(title, {arm.name: arm.rates for arm in arms})))


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = CommandParser(
        "hvdtrain bench pipeline",
        "Nothing was measured.",
        description="Time steps of a model on one device, split into stages of which one works at a time, and "
        "pipelined with micro batches of several sizes. Start it with a launcher, or give --parallel.devices. Options "
        "of `hvdtrain train` say what is trained.",
    )
    listed = ",".join(map(str, _SIZES))
    parser.add_argument(
        "--split-sizes",
        type=_sizes,
        default=_SIZES,
        metavar="N,...",
        help=f"records of a micro batch (default: {listed})",
    )
    parser.option("--seconds", 10.0, "about how long each way is measured", type=positive("--seconds"))
    parser.option("--out", Path("bench-pipeline"), "folder for the results", type=Path)
    options, rest = parser.parse_own(argv)
    return options, [*rest, *(["--debug"] if options.debug else [])]


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(sorted({*map(int, number_list(text, "--split-sizes", int, "1,3,5,8"))}))
