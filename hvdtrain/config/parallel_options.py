"""How a model is divided into stages that are trained as a pipeline: `--parallel.stages` and what belongs to it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from hvdtrain.config.option_checks import AT_LEAST_ONE, require_range
from hvdtrain.errors import UsageError

AUTO: Final = "auto"


@dataclass(frozen=True)
class ParallelOptions:
    """How a model is divided.

    Args:
        stages: cut the model into this many parts, one after the other; each worker trains one of them, or, with
            parallel.devices, this worker trains all. With W workers, W / stages replicas of the model are trained.
        devices: the device of each stage, if one process trains all of them, e.g. cuda:0,cuda:1 or cpu,cpu (default:
            each worker has one stage, on its own device).
        micro_batches: parts into which each worker's batch is cut, so that stages work at the same time, or auto: four
            for each stage. With 1, one stage works at a time.
        schedule: 1f1b (each stage goes backward as early as it can, and keeps few activations), or gpipe (all forward
            passes first).
        cuts: names of the layers with which stages begin, but for the first one, e.g. layer3 for two stages (default:
            where the measured times of the stages are as equal as can be).
        choose: auto (or --parallel auto): measure for some seconds at the start, and train in the way that `hvdtrain
            plan` recommends for these workers: whole models, shard, or stages.
        transport: what carries activations between workers: mpi (mpi4py), horovod (a process set of two), or auto: mpi
            if Horovod uses it and mpi4py is installed.
    """

    stages: int = 1
    devices: str | None = None
    micro_batches: int | str = AUTO
    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    cuts: str | None = None
    transport: Literal["auto", "mpi", "horovod"] = "auto"
    choose: Literal["never", "auto"] = "never"

    def __post_init__(self) -> None:
        require_range(self, AT_LEAST_ONE, {"stages": "2"}, "parallel.")
        if self.micro_batches != AUTO and not (isinstance(self.micro_batches, int) and self.micro_batches >= 1):
            raise UsageError(
                f"--parallel.micro-batches is {self.micro_batches}.",
                "It must be 1 or more, or auto.",
                "try --parallel.micro-batches 8.",
            )
        if self.choose == "auto" and self.devices:
            raise UsageError(
                f"--parallel auto is given with --parallel.devices {self.devices}.",
                "It chooses what each of several workers trains, on a device of its own.",
                "leave one of them out, or give --parallel.stages instead of auto.",
            )
        _require_as_many(self.devices, self.stages, "devices", "One device belongs to each stage.", 0)
        _require_as_many(self.cuts, self.stages - 1, "cuts", "A layer's name begins each stage but the first one.", 1)
        if self.choose == "auto" and self.stages > 1:
            raise UsageError(
                f"--parallel auto is given with --parallel.stages {self.stages}.",
                "It chooses how many stages there are.",
                "leave one of them out.",
            )
        given = [name for name, usual in _USUAL.items() if getattr(self, name) != usual]
        if self.stages == 1 and given:
            raise UsageError(
                f"--parallel.{given[0].replace('_', '-')} is given without --parallel.stages.",
                "The model is not divided, so that it would change nothing.",
                "give a number of stages, as --parallel.stages 2, or leave it out.",
            )

    @property
    def is_pipeline(self) -> bool:
        """Whether stages are on several workers."""
        return self.stages > 1 and self.devices is None

    @property
    def stages_of_workers(self) -> int:
        """Workers that train one replica of the model together."""
        return self.stages if self.is_pipeline else 1

    def replicas_of(self, workers: int) -> int:
        """Of the model, that so many workers train."""
        return workers // self.stages_of_workers

    @property
    def device_names(self) -> list[str]:
        """Of each stage; [] where each worker has its own."""
        return [] if self.devices is None else [name.strip() for name in self.devices.split(",")]

    @property
    def cut_names(self) -> list[str]:
        """Of the layers with which stages begin; [] where they are to be chosen."""
        return [] if self.cuts is None else [name.strip() for name in self.cuts.split(",")]


_USUAL: Final = {"devices": None, "micro_batches": AUTO, "schedule": "1f1b", "cuts": None, "transport": "auto"}


def _require_as_many(given: str | None, count: int, name: str, why: str, least: int) -> None:
    number = 0 if given is None else len(given.split(","))
    if given is not None and number != max(count, least):
        raise UsageError(
            f"--parallel.{name} names {number}, and --parallel.stages is {count + least}.",
            why,
            f"give {count} of them, separated by commas.",
        )


def refused_with_stages(options: Any) -> Mapping[str, bool]:
    """Options of `TrainingOptions` that do not go with stages, in the words of the command line → whether given."""
    return {
        "--accumulate-steps": options.accumulate_steps > 1,
        "--steps-per-call": options.steps_per_call > 1,
        "--sync-batch-norm": options.sync_batch_norm,
        "--compile": options.compile,
        "--data-parallel": options.data_parallel,
        f"--compression {options.compression}": options.compression in ("bf16", "powersgd"),
        "--reduce-op adasum": options.reduce_op == "adasum",
        "--sync-every": options.sync_every is not None,
        "--sparse-gradients allgather": options.sparse_gradients != "dense",
        "--gradient-sync horovod": options.gradient_sync != "buckets",
        f"--shard {options.shard}": options.shard != "none",
    }


_INSTEAD: Final = {
    "--accumulate-steps": "--parallel.micro-batches cuts a worker's batch in the same way.",
    "--shard": "stages divide the optimizer's state already.",
}


def combinations_of_stages(options: Any) -> list[tuple[object, str, str, str]]:
    """What cannot go together, of `TrainingOptions`."""
    stages = options.parallel.stages
    other = next((name for name, given in refused_with_stages(options).items() if given), "")
    hint = next((text for name, text in _INSTEAD.items() if other.startswith(name)), "")
    return [
        (
            stages > 1 and other,
            f"--parallel.stages {stages} is given with {other}.",
            "A stage has a part of the layers and of each update only, and that option needs a whole model.",
            f"leave one of them out{'; ' + hint if hint else '.'}",
        )
    ]
