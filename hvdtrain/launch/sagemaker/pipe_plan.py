"""Plans of `hvdtrain shard pipe-plan`: read by data_sharding's own reader, compared with the job, or made."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.launch.sagemaker.spec import TrainingSpec

if TYPE_CHECKING:
    from data_sharding.pipe.parsers import Framing
    from data_sharding.pipe.pipe_plan import PipePlan

PLAN_FILE = "plan.json"
STEPS = ("data.pipe-steps", "data.pipe_steps")
"""The hyperparameter that says how many steps an epoch has, as it may be spelled."""
FRAMINGS: Final[dict[str, "Framing"]] = {
    "application/x-recordio": "recordio",
    "application/x-recordio-protobuf": "recordio-sagemaker",
}
"""Content type → record format of the files, if they are not TFRecords."""


@dataclass(frozen=True)
class PendingPipePlan:
    """A plan to be made in `folder`: it divides the files at `location` over channels `CHANNEL-0`, `CHANNEL-1`, …"""

    channel: str
    location: str
    content_type: str | None
    folder: Path


def read_plan(folder: str) -> "PipePlan":
    """The plan in a folder; UsageError if there is none, or it is none of this version."""
    from data_sharding.errors import ShardingError
    from data_sharding.pipe.pipe_plan_file import load_plan

    try:
        return load_plan(Path(folder).expanduser().absolute() / PLAN_FILE)
    except ShardingError as error:
        hint = "make it with `hvdtrain shard pipe-plan SRC --workers-per-host K --prefix s3://... --out FOLDER`."
        raise UsageError(error.fact, error.conflict, hint) from error


def is_sharded(plan: "PipePlan") -> bool:
    return plan.distribution == "sharded-by-s3-key"


def require_fit(spec: TrainingSpec, plan: "PipePlan", where: str) -> None:
    """Raise UsageError unless the plan was made for this job, and its files are where the job runs."""
    if (plan.hosts, plan.workers_per_host) != (spec.instance_count, spec.processes_per_host):
        raise UsageError(
            f"The plan in {where} is for {plan.hosts} hosts of {plan.workers_per_host} workers.",
            f"The job has {spec.instance_count} of {spec.processes_per_host}, and each worker needs its own channel.",
            f"make it again with --hosts {spec.instance_count} --workers-per-host {spec.processes_per_host}.",
        )
    if spec.is_local == plan.prefix.startswith("s3://"):
        raise UsageError(
            f"The files of the plan in {where} are at {plan.prefix}.",
            "A job on this machine reads local files." if spec.is_local else "SageMaker reads from S3.",
            "make it again without --prefix." if spec.is_local else "make it again with --prefix s3://bucket/folder/.",
        )
    if spec.task is not None and plan.records is None and not _has_steps(spec):
        raise UsageError(
            f"The records of the plan in {where} were not counted.",
            "Learning rate and checkpoints need to know how many steps an epoch has.",
            f"add the hyperparameter {STEPS[0]} (-- train --{STEPS[0]} N).",
        )
    if spec.task is not None and plan.rank_records() is not None and _has_steps(spec):
        raise UsageError(
            f"The plan in {where} knows how many records reach each worker, and the job has {STEPS[0]}.",
            "The steps of an epoch follow from the records.",
            f"leave out {STEPS[0]}.",
        )


def make_plan(spec: TrainingSpec, plan: PendingPipePlan) -> None:
    """Find the files and divide them over the workers, as `hvdtrain shard pipe-plan` does."""
    from data_sharding.errors import ShardingError
    from data_sharding.pipe import pipe_plan, pipe_plan_file

    framing = FRAMINGS.get(plan.content_type or "", "tfrecord")
    counts = spec.task is not None and not _has_steps(spec)  # it costs a pass over the data
    try:
        prefix, files = pipe_plan_file.describe_files(plan.location.removeprefix("file://"), framing, counts)
        planned = pipe_plan.make_plan(
            files,
            workers_per_host=spec.processes_per_host,
            hosts=spec.instance_count,
            distribution="sharded-by-s3-key" if spec.instance_count > 1 else "divided",
            prefix=prefix,
            framing=framing,
            channel=plan.channel,
        )
        pipe_plan_file.save_plan(planned, plan.folder)
    except (ShardingError, OSError) as error:
        conflict, hint = (error.fact, error.hint) if isinstance(error, ShardingError) else (f"{error}.", "make room.")
        fact = f"The files of channel {plan.channel} could not be distributed over the workers."
        raise HvdtrainError(fact, conflict, hint) from error


def _has_steps(spec: TrainingSpec) -> bool:
    return any(name in spec.hyperparameters for name in STEPS)
