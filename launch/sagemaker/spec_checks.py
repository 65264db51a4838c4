"""All that a training job may be refused for before anything is rendered."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from hvdtrain.errors import UsageError, did_you_mean
from hvdtrain.launch.sagemaker.cloud_checks import require_cloud
from hvdtrain.launch.sagemaker.spec_types import require_types

if TYPE_CHECKING:
    from hvdtrain.launch.sagemaker.spec import TrainingSpec

INPUT_MODES = ("Pipe", "File", "FastFile")
RESERVED = "sagemaker_"
"""What names of SageMaker's own hyperparameters begin with."""

# API_CreateTrainingJob and the types that it refers to; `service_model` compares with botocore's copy of them.
_JOB_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*")
_MAX_BASE_NAME = 63 - len("-2026-11-21-19-40-00-123")
_INSTANCE_TYPE = re.compile(r"ml\.[a-z0-9-]+\.[a-z0-9-]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FLAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_NIC = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,14}")
_MAX_HYPERPARAMETERS = 100 - 7  # seven of our own


def require_valid_spec(spec: TrainingSpec) -> None:
    """Raise UsageError for the first thing about a job that cannot be."""
    require_types(spec)
    _require_program(spec)
    _require_choices(spec)
    _require_numbers(spec)
    _require_hyperparameters(spec)
    _require_environment(spec)
    _require_metrics(spec)
    _require_network(spec)
    if spec.is_local:
        _require_local_output(spec)
    else:
        require_cloud(spec)


def _require_program(spec: TrainingSpec) -> None:
    if (spec.task is None) == (spec.entry_point is None):
        both = spec.task is not None
        raise UsageError(
            f"The job has {'both a task and' if both else 'neither a task nor'} an entry point.",
            "One of them says what workers run.",
            "give task='digits', or entry_point='train.py' with its source_dir.",
        )
    if spec.task is not None and "task" in spec.hyperparameters:
        raise UsageError(
            f"The task is {spec.task!r}, and there is a hyperparameter 'task'.",
            "Both become the flag --task.",
            "say it once, as task.",
        )
    _require_entry_point(spec)


def _require_entry_point(spec: TrainingSpec) -> None:
    path = spec.entry_point
    if path is None:
        return
    steps = path.split("/")
    if spec.source_dir is not None and (path.startswith("/") or ".." in steps):
        raise UsageError(
            f"The entry point is {path!r}.",
            "It must be a file in source_dir, by its path there.",
            "write e.g. entry_point='train.py'.",
        )
    if not path.endswith((".py", ".sh")) or any(mark in path for mark in "\n\0"):
        raise UsageError(
            f"The entry point is {path!r}.", "Workers run Python files and shell scripts.", "name a .py or .sh file."
        )


def _require_choices(spec: TrainingSpec) -> None:
    if spec.input_mode not in INPUT_MODES:
        raise UsageError(
            f"The input mode is {spec.input_mode!r}.",
            "There is none of that name.",
            did_you_mean(spec.input_mode, INPUT_MODES),
        )
    if not spec.is_local and not _INSTANCE_TYPE.fullmatch(spec.instance_type):
        raise UsageError(
            f"The instance type is {spec.instance_type[:80]!r}.",
            "SageMaker's have names such as ml.p4d.24xlarge.",
            "choose one of those, or 'local' for this machine.",
        )
    if not _JOB_NAME.fullmatch(spec.base_job_name) or len(spec.base_job_name) > _MAX_BASE_NAME:
        raise UsageError(
            f"The job's name begins with {spec.base_job_name[:80]!r}.",
            f"It may have up to {_MAX_BASE_NAME} letters, digits and hyphens, and no hyphen at either end.",
            "choose another base_job_name (--name).",
        )


def _require_numbers(spec: TrainingSpec) -> None:
    ranges = {
        "instance count": (spec.instance_count, 1, 10_000),
        "number of processes per host": (spec.processes_per_host, 1, 1024),
        "volume size": (spec.volume_size_gb, 1, 16_384),
        "run time": (spec.max_run_s, 1, 28 * 24 * 3600),
        "waiting time": (spec.max_wait_s, 1, 2**31 - 1),
        "number of retries": (spec.max_retry_attempts, 1, 30),
        "keep-alive period": (spec.keep_alive_period_s, 0, 6 * 3600),
    }
    for name, (value, least, most) in ranges.items():
        if value is not None and not least <= value <= most:
            raise UsageError(
                f"The {name} is {value}.", f"It must be from {least} to {most}.", "give a number between them."
            )
    _require_spot(spec)


def _require_spot(spec: TrainingSpec) -> None:
    if spec.use_spot and (spec.max_wait_s is None or spec.max_wait_s < spec.max_run_s):
        raise UsageError(
            f"The job may train for {spec.max_run_s} s on spot instances, and the waiting time is {spec.max_wait_s}.",
            "It covers waiting and training together.",
            f"give max_wait_s={2 * spec.max_run_s} or another number from {spec.max_run_s} up.",
        )
    if spec.use_spot and spec.keep_alive_period_s:
        raise UsageError(
            f"The job runs on spot instances, which are to be kept for {spec.keep_alive_period_s} s.",
            "SageMaker's warm pools have no spot instances.",
            "choose one of the two.",
        )
    if spec.max_wait_s is not None and not spec.use_spot:
        raise UsageError(
            f"The waiting time is {spec.max_wait_s} s.",
            "Only spot instances are waited for.",
            "add use_spot=True (--use-spot), or leave max_wait_s out.",
        )


def _require_hyperparameters(spec: TrainingSpec) -> None:
    if len(spec.hyperparameters) > _MAX_HYPERPARAMETERS:
        raise UsageError(
            f"The job has {len(spec.hyperparameters)} hyperparameters.",
            f"SageMaker takes 100, and {100 - _MAX_HYPERPARAMETERS} are needed for the job itself.",
            "put some into a YAML file in source_dir, and give its name as the hyperparameter config.",
        )
    for name, value in spec.hyperparameters.items():
        if not _FLAG.fullmatch(name) or len(name) > 256:
            raise UsageError(
                f"A hyperparameter is called {name[:80]!r}.",
                "Workers get it as the flag --name, which this cannot be.",
                "use letters, digits, '.', '-' and '_', without leading dashes.",
            )
        if name.lower().startswith(RESERVED):
            raise UsageError(
                f"A hyperparameter is called {name!r}.",
                f"Names that begin with {RESERVED} are SageMaker's own.",
                "choose another name, or the argument of the Estimator that sets this one.",
            )
        _require_value(name, value)
    if spec.task is not None:
        _require_one_spelling(spec)


def _require_one_spelling(spec: TrainingSpec) -> None:
    """hvdtrain's flags may be written with - or _, and so be given twice."""
    spellings: dict[str, str] = {}
    for name in spec.hyperparameters:
        other = spellings.setdefault(name.replace("_", "-"), name)
        if other != name:
            raise UsageError(
                f"There are hyperparameters {other!r} and {name!r}.", "Both are the same flag.", "leave one out."
            )


def _require_value(name: str, value: object) -> None:
    if not isinstance(value, str | int | float | bool) or (isinstance(value, float) and not math.isfinite(value)):
        raise UsageError(
            f"Hyperparameter {name!r} is {str(value)[:80]!r}, of type {type(value).__name__}.",
            "A hyperparameter is text, a finite number or a truth value.",
            "write it as text that the training code parses.",
        )


def _require_environment(spec: TrainingSpec) -> None:
    for name in spec.environment:
        if not _VARIABLE.fullmatch(name) or len(name) > 512:
            raise UsageError(
                f"A variable is called {name[:80]!r}.",
                "Names of variables have letters, digits and '_'.",
                "choose another name.",
            )
    if len(spec.environment) > 100 - 2:
        raise UsageError(f"The job has {len(spec.environment)} variables.", "SageMaker takes 98.", "use a file.")


def _require_network(spec: TrainingSpec) -> None:
    if bool(spec.subnets) != bool(spec.security_group_ids):
        missing, given = (
            ("subnets", "security_group_ids") if spec.security_group_ids else ("security_group_ids", "subnets")
        )
        raise UsageError(
            f"The job has {given} and no {missing}.", "A VPC is named by both.", f"give {missing} too, or neither."
        )
    nic = spec.network_interface_name
    if nic is not None and not _NIC.fullmatch(nic):
        raise UsageError(
            f"The network interface is called {nic[:80]!r}.",
            "Interfaces have names such as eth0.",
            "leave it out: SageMaker names the right one.",
        )


def _require_metrics(spec: TrainingSpec) -> None:
    for name, text in spec.metric_definitions.items():
        try:
            re.compile(text)
        except re.error as error:
            raise UsageError(
                f"The metric {name[:80]} has the regular expression {text[:80]!r}.",
                f"It cannot be one: {error}.",
                r"write e.g. loss=([0-9.]+); a bracket that is meant as such is \(.",
            ) from error


def _require_local_output(spec: TrainingSpec) -> None:
    place = spec.output_path or ""
    if "://" in place and not place.startswith("file://"):
        raise UsageError(
            f"The output_path is {place[:200]!r}.", "A job on this machine writes to its disk.", "give a folder."
        )
