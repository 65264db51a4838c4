"""A model on one device, split into stages of which one works at a time, and pipelined with micro batches."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hvdtrain.comm.communicator import Communicator
from hvdtrain.config.parallel_options import ParallelOptions
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.errors import UsageError
from hvdtrain.plan.check_predictions import TimedWay, in_turns, times_alone
from hvdtrain.plan.plan_files import drawn_svg, write_results
from hvdtrain.task.task import Task
from hvdtrain.version import versions


@dataclass(frozen=True)
class Arm:
    """One way to train the batch."""

    name: str  # for people
    split_size: int | None  # records of a micro batch; None: the whole batch
    seconds: Sequence[float]  # of a step in each run
    records: int  # of the batch

    @property
    def rates(self) -> list[float]:
        """Records a second in each run."""
        return [self.records / seconds for seconds in self.seconds]


def config_in_stages(config: TrainConfig, workers: int) -> TrainConfig:
    """The config of the naive split: a stage for each worker, unless it has a number of stages. Raises UsageError: the
    model cannot be divided."""
    if config.framework == "tensorflow":
        raise UsageError(
            "--framework is tensorflow.", "torch models can be divided into stages.", "give --framework torch."
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


@dataclass(frozen=True)
class SplitRequest:
    """What is measured."""

    config: TrainConfig  # see `config_in_stages`; its global batch is set
    kind: type[Task]  # the task
    split_sizes: Sequence[int]  # records of a micro batch
    seconds: float  # about how long each way is measured
    smallest: int  # records that the model needs in a micro batch


def measured_arms(request: SplitRequest, comm: Communicator, tell: Callable[[str], None]) -> Iterator[Arm]:
    """All ways, one after the other. Collective. Args: `tell`: receives lines for people."""
    config = request.config
    whole = replace(config, parallel=ParallelOptions())
    records = config.global_batch_size or 1
    tell(f"{2 + len(request.split_sizes)} ways, each for about {request.seconds:g} s after some steps to warm up")

    def arm(name: str, size: int | None, way: TrainConfig, alone: bool = False) -> Arm:
        if alone:
            times = times_alone(way, request.kind, comm, request.seconds)
        else:
            (times,) = in_turns([TimedWay(way, request.kind, comm)], request.seconds)
        tell(f"{name}: {statistics.median(times):.3f} s a step")
        return Arm(name, size, times, records)

    yield arm("one device", None, whole, alone=comm.topology.is_distributed)
    yield arm("naive split", None, config)
    replica_records = records // config.parallel.replicas_of(comm.topology.size)
    for size in request.split_sizes:
        count = max(1, replica_records // size)
        if size > replica_records or replica_records // count < request.smallest:
            tell(
                f"micro batches of {size} records are left out: the model needs {request.smallest}, and there are "
                f"{replica_records}"
            )
            continue
        yield arm(f"pipelined, {size}", size, replace(config, parallel=replace(config.parallel, micro_batches=count)))


def arm_rows(arms: Sequence[Arm]) -> list[list[str]]:
    """Name, median and 1.96 standard deviations of the rate, and the gain over the first arm, of each arm."""
    base = statistics.median(arms[0].rates)
    rows = []
    for arm in arms:
        rate, spread = statistics.median(arm.rates), statistics.stdev(arm.rates)
        rows.append([arm.name, f"{rate:,.1f}", f"± {1.96 * spread:,.1f}", f"{rate / base - 1:+.0%}"])
    return rows


def write_arms(arms: Sequence[Arm], config: TrainConfig, folder: Path) -> str:
    """See `write_results`."""

    def draw(_: Any, axes: Any) -> None:
        """A bar for the median of each arm, whose error bar is 1.96 standard deviations."""
        names, rates = [arm.name for arm in arms[::-1]], [arm.rates for arm in arms[::-1]]
        medians = [statistics.median(values) for values in rates]
        spreads = [1.96 * statistics.stdev(values) if len(values) > 1 else 0.0 for values in rates]
        axes.barh(names, medians, xerr=spreads, color="#34495e", height=0.6, error_kw={"capsize": 3, "ecolor": "0.4"})
        for place, median in enumerate(medians):
            axes.text(0, place, f" {median:,.3g}", va="center", color="white", fontsize=8)
        title = f"{config.model or config.task} in {config.parallel.stages} stages: records a second"
        axes.set_title(title, loc="left", fontsize=10)
        axes.tick_params(labelsize=8)
        axes.grid(visible=False, axis="y")

    content = {"arms": [asdict(arm) for arm in arms], "config": asdict(config), "versions": versions()}
    return write_results(folder, "pipeline", content, drawn_svg(7, 1.2 + 0.3 * len(arms), draw))
