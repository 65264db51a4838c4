"""How a model is divided into stages that are trained as a pipeline: `--parallel.stages` and what belongs to it."""

from dataclasses import dataclass
from typing import Final, Literal

from hvdtrain.config.option import AT_LEAST_ONE, Group, Options, option
from hvdtrain.errors import UsageError

AUTO: Final = "auto"


@dataclass(frozen=True)
class ParallelOptions(Options):
    prefix = "parallel."

    stages: int = option(1, Group.STAGES, must=AT_LEAST_ONE).help("""cut the model into this many parts, one after the
        other; each worker trains one of them, or, with parallel.devices, this worker trains all. With W workers, W /
        stages replicas of the model are trained.""")
    devices: str | None = option(None, Group.STAGES, metavar="DEVICE,...").help("""the device of each stage, if one
        process trains all of them, e.g. cuda:0,cuda:1 or cpu,cpu (default: each worker has one stage, on its own
        device).""")
    micro_batches: int | str = option(AUTO, Group.STAGES, metavar="{auto,N}").help("""parts into which each worker's
        batch is cut, so that stages work at the same time, or auto: four for each stage. With 1, one stage works at a
        time.""")
    schedule: Literal["1f1b", "gpipe"] = option("1f1b", Group.STAGES).help("""1f1b (each stage goes backward as early as
        it can, and keeps few activations), or gpipe (all forward passes first).""")
    cuts: str | None = option(None, Group.STAGES, metavar="LAYER,...").help("""names of the layers at which the stages
        after the first one begin, e.g. layer3 for two stages (default: where the measured times of the stages are as
        equal as can be).""")
    transport: Literal["auto", "mpi", "horovod"] = option("auto", Group.STAGES).help("""what carries activations
        between workers: mpi (mpi4py), horovod (a process set of two), or auto: mpi if Horovod uses it and mpi4py is
        installed.""")
    choose: Literal["never", "auto"] = option("never", Group.STAGES).help("""auto (or --parallel auto): measure for some
        seconds at the start, and train in the way that `hvdtrain plan` recommends for these workers: whole models,
        shard, or stages.""")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.micro_batches != AUTO and not (isinstance(self.micro_batches, int) and self.micro_batches >= 1):
            raise UsageError(
                f"--parallel.micro-batches is {self.micro_batches}.",
                "It must be 1 or more, or auto.",
                "try --parallel.micro-batches 8.",
            )
        _require_as_many(self.devices, self.stages, "devices", "One device belongs to each stage.", 0)
        _require_as_many(self.cuts, self.stages - 1, "cuts", "A layer's name begins each stage but the first one.", 1)

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


def _require_as_many(given: str | None, count: int, name: str, why: str, least: int) -> None:
    number = 0 if given is None else len(given.split(","))
    if given is not None and number != max(count, least):
        raise UsageError(
            f"--parallel.{name} names {number}, and --parallel.stages is {count + least}.",
            why,
            f"give {count} of them, separated by commas.",
        )
