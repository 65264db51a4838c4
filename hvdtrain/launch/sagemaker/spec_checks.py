"""Checks of the arguments of a training job before anything is rendered.

These rules need no boto3 and name the argument. Where botocore is installed, `request_checks` compares the request as
a whole with SageMaker's own service model too. The numbers and patterns are those of API_CreateTrainingJob.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from os import PathLike
from typing import Any

from hvdtrain.errors import UsageError
from hvdtrain.launch.job_checks import NIC

INPUT_MODES = ("Pipe", "File", "FastFile")
RESERVED = "sagemaker_"
"""What names of SageMaker's own hyperparameters begin with."""
_MAX_JOB_NAME = 63

_TEXT = ("text", (str,), "role='arn:aws:iam::111122223333:role/train'")
_MAPPING = ("a mapping", (Mapping,), "environment={'NCCL_DEBUG': 'INFO'}")
_TYPES: dict[str, tuple[str, tuple[type, ...], str]] = {
    "str": _TEXT,
    "InputMode": _TEXT,
    "str | PathLike[str]": ("a path", (str, PathLike), "source_dir='src'"),
    "int": ("a whole number", (int,), "instance_count=2"),
    "bool": ("True or False", (bool,), "use_spot=True"),
    "tuple[str, ...]": ("a tuple of texts", (tuple, list), "subnets=('subnet-1',)"),
    "Mapping[str, str]": _MAPPING,
    "Mapping[str, HyperparameterValue]": _MAPPING,
}
"""The annotation of a field, without `| None` → what messages call its type, the types, and an example."""
_RANGES = {
    "instance_count": ("instance count", 1, 10_000),
    "processes_per_host": ("number of processes per host", 1, 1024),
    "volume_size_gb": ("volume size", 1, 16_384),
    "max_run_s": ("run time", 1, 28 * 24 * 3600),
    "max_wait_s": ("waiting time", 1, 2**31 - 1),
    "max_retry_attempts": ("number of retries", 1, 30),
    "keep_alive_period_s": ("keep-alive period", 0, 6 * 3600),
}
_JOB_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*")
_MAX_BASE_NAME = _MAX_JOB_NAME - len("-2026-11-21-19-40-00-123")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,511}")
_OPTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,255}")
_MAX_HYPERPARAMETERS = 100 - 7  # seven of our own


def require_types_and_ranges(spec: Any) -> None:
    """Raise UsageError for the first field of a `TrainingSpec` that is of another type, or too small or large."""
    for field in fields(spec):
        _require_type(field.name, getattr(spec, field.name), str(field.type))
    for name, (called, least, most) in _RANGES.items():
        value = getattr(spec, name)
        if value is not None and not least <= value <= most:
            raise UsageError(
                f"The {called} is {value}.", f"It must be from {least} to {most}.", "give a number between them."
            )


def require_job_name(name: object, is_base: bool = False) -> None:
    """Raise UsageError unless jobs may have this name, or this base of a name; the same for AWS and this machine."""
    most = _MAX_BASE_NAME if is_base else _MAX_JOB_NAME
    if not isinstance(name, str) or len(name) > most or not _JOB_NAME.fullmatch(name):
        raise UsageError(
            f"The job's name {'begins with' if is_base else 'is'} {str(name)[:80]!r}.",
            f"It may have up to {most} letters, digits and hyphens, and no hyphen at either end.",
            f"choose another {'base_job_name (--name).' if is_base else 'job_name (--job-name), or leave it out.'}",
        )


def require_program(task: str | None, entry_point: str | None, has_source_dir: bool) -> None:
    """Raise UsageError unless a job has a task or an entry point that can be run."""
    if (task is None) == (entry_point is None):
        raise UsageError(
            f"The job has {'both a task and' if task is not None else 'neither a task nor'} an entry point.",
            "One of them says what workers run.",
            "give task='digits', or entry_point='train.py' with its source_dir.",
        )
    if entry_point is None:
        return
    fact = f"The entry point is {entry_point!r}."
    if has_source_dir and (entry_point.startswith("/") or ".." in entry_point.split("/")):
        conflict = "It must be a file in source_dir, by its path there."
        raise UsageError(fact, conflict, "write e.g. entry_point='train.py'.")
    if not entry_point.endswith((".py", ".sh")) or "\n" in entry_point:
        raise UsageError(fact, "Workers run Python files and shell scripts.", "name a .py or .sh file.")


def require_spot(use_spot: bool, max_run_s: int, max_wait_s: int | None, keep_alive_period_s: int | None) -> None:
    """Raise UsageError unless the times of a job fit to spot instances, or to instances of its own."""
    if use_spot and (max_wait_s is None or max_wait_s < max_run_s):
        raise UsageError(
            f"The job may train for {max_run_s} s on spot instances, and the waiting time is {max_wait_s}.",
            "It covers waiting and training together.",
            f"give max_wait_s={2 * max_run_s} or another number from {max_run_s} up.",
        )
    if use_spot and keep_alive_period_s:
        fact = f"The job runs on spot instances, which are to be kept for {keep_alive_period_s} s."
        raise UsageError(fact, "SageMaker's warm pools have no spot instances.", "choose one of the two.")
    if max_wait_s is not None and not use_spot:
        raise UsageError(
            f"The waiting time is {max_wait_s} s.",
            "Only spot instances are waited for.",
            "add use_spot=True (--use-spot), or leave max_wait_s out.",
        )


def require_network(subnets: Sequence[str], security_group_ids: Sequence[str], nic: str | None) -> None:
    """Raise UsageError for half of a VPC, or a network interface that there cannot be."""
    if bool(subnets) != bool(security_group_ids):
        given, missing = ("subnets", "security_group_ids") if subnets else ("security_group_ids", "subnets")
        raise UsageError(
            f"The job has {given} and no {missing}.", "A VPC is named by both.", f"give {missing} too, or neither."
        )
    if nic is not None and not NIC.fullmatch(nic):
        raise UsageError(
            f"The network interface is called {nic[:80]!r}.",
            "Interfaces have names such as eth0.",
            "leave it out: SageMaker names the right one.",
        )


def require_hyperparameters(hyperparameters: Mapping[str, object], task: str | None) -> None:
    """Raise UsageError for a hyperparameter that SageMaker does not take, or that is no option of the workers."""
    if task is not None and "task" in hyperparameters:
        raise UsageError(
            f"The task is {task!r}, and there is a hyperparameter 'task'.",
            "Both become the option --task.",
            "say it once, as task.",
        )
    if len(hyperparameters) > _MAX_HYPERPARAMETERS:
        raise UsageError(
            f"The job has {len(hyperparameters)} hyperparameters.",
            f"SageMaker takes 100, and {100 - _MAX_HYPERPARAMETERS} are needed for the job itself.",
            "put some into a YAML file in source_dir, and give its name as the hyperparameter config.",
        )
    spellings: dict[str, str] = {}
    for name, value in hyperparameters.items():
        _require_option(name, value)
        other = spellings.setdefault(name.replace("_", "-"), name)
        if other != name and task is not None:  # of a script, both may be options
            raise UsageError(
                f"There are hyperparameters {other!r} and {name!r}.", "Both are the same option.", "leave one out."
            )


def _require_option(name: str, value: object) -> None:
    if not _OPTION.fullmatch(name):
        raise UsageError(
            f"A hyperparameter is called {name[:80]!r}.",
            "Workers get it as the option --name, which this cannot be.",
            "use letters, digits, '.', '-' and '_', without leading dashes.",
        )
    if name.lower().startswith(RESERVED):
        raise UsageError(
            f"A hyperparameter is called {name!r}.",
            f"Names that begin with {RESERVED} are SageMaker's own.",
            "choose another name, or the argument of the Estimator that sets this one.",
        )
    if not isinstance(value, str | int | float | bool) or (isinstance(value, float) and not math.isfinite(value)):
        raise UsageError(
            f"Hyperparameter {name!r} is {str(value)[:80]!r}, of type {type(value).__name__}.",
            "A hyperparameter is text, a finite number or a truth value.",
            "write it as text that the training code parses.",
        )


def require_environment(environment: Mapping[str, str]) -> None:
    """Raise UsageError for a variable's name that cannot be, or for too many variables."""
    for name in environment:
        if not _VARIABLE.fullmatch(name):
            raise UsageError(
                f"A variable is called {name[:80]!r}.",
                "Names of variables have letters, digits and '_'.",
                "choose another name.",
            )
    if len(environment) > 100 - 2:
        raise UsageError(f"The job has {len(environment)} variables.", "SageMaker takes 98.", "use a file.")


def require_metrics(metrics: Mapping[str, str]) -> None:
    """Raise UsageError for what is no regular expression."""
    for name, text in metrics.items():
        try:
            re.compile(text)
        except re.error as error:
            raise UsageError(
                f"The metric {name[:80]} has the regular expression {text[:80]!r}.",
                f"It cannot be one: {error}.",
                r"write e.g. loss=([0-9.]+); a bracket that is meant as such is \(.",
            ) from error


def _require_type(name: str, value: Any, annotation: str) -> None:
    required = annotation.removesuffix(" | None")
    wanted, types, example = _TYPES[required]
    if value is None and required != annotation:
        return
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        wanted += " or None" if required != annotation else ""
        raise _wrong_type(f"The argument {name}", value, wanted, example)
    if isinstance(value, Mapping):
        _require_texts(name, value)
    elif isinstance(value, tuple | list):
        for entry in value:
            if not isinstance(entry, str):
                raise _wrong_type(f"An entry of {name}", entry, "text", example)
    elif "\0" in str(value):
        raise _wrong_type(f"The argument {name}", value, "text without a NUL", _TEXT[-1])


def _require_texts(name: str, mapping: Mapping[Any, Any]) -> None:
    """The messages do not show the values, which may be secret."""
    for key, value in mapping.items():
        if not isinstance(key, str):
            raise _wrong_type(f"A name in {name}", key, "text", _MAPPING[-1])
        is_text = isinstance(value, str) or name == "hyperparameters"
        if not is_text or "\0" in f"{key}{value}":
            raise UsageError(
                f"The value {name}[{key[:80]!r}] is of type {type(value).__name__}.",
                f"It must be text{' without a NUL' if is_text else ''}.",
                f"write it as in {_MAPPING[-1]}.",
            )


def _wrong_type(what: str, value: object, wanted: str, example: str) -> UsageError:
    return UsageError(
        f"{what} is {repr(value)[:80]}, of type {type(value).__name__}.",
        f"It must be {wanted}.",
        f"write it as in {example}.",
    )
