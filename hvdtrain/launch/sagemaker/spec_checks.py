"""Checks of the arguments of a training job before anything is rendered.

Here are the rules that nobody else checks, or only when machines were waited for and paid. What SageMaker's API refuses
at once, with a clear message, is left to it, and to `request_checks`, which compares the request with its own model.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from os import PathLike, fspath
from typing import Any

from hvdtrain.errors import UsageError

INPUT_MODES = ("Pipe", "File", "FastFile")
RESERVED = "sagemaker_"  # what names of SageMaker's own hyperparameters begin with

_TYPES: dict[str, tuple[str, tuple[type, ...]]] = {
    "str": ("text", (str,)),
    "InputMode": ("text", (str,)),
    "str | PathLike[str]": ("a path", (str, PathLike)),
    "int": ("a whole number", (int,)),
    "bool": ("True or False", (bool,)),
    "tuple[str, ...]": ("a tuple of texts such as ('subnet-1',)", (tuple, list)),
    "Mapping[str, str]": ("a mapping such as {'NCCL_DEBUG': 'INFO'}", (Mapping,)),
    "Mapping[str, HyperparameterValue]": ("a mapping such as {'epochs': 3}", (Mapping,)),
}
"""The annotation of a field, without `| None` → what messages call its type, and the types."""
_COUNTS = {"instance_count": 10_000, "processes_per_host": 1024, "max_run_s": 28 * 24 * 3600}
"""Argument → the largest value; the smallest is 1."""

_MAX_JOB_NAME = 63
_MAX_BASE_NAME = _MAX_JOB_NAME - len("-2026-11-21-19-40-00-123")
_JOB_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*")
_OPTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,255}")
_PATTERNS = {
    "region": (re.compile(r"[a-z]{2,4}(-[a-z]+)+-\d{1,2}"), "us-east-1"),
    "image": (re.compile(r"\S+"), "ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME:TAG"),
}
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_NEEDED = {
    "role": "an ARN such as arn:aws:iam::111122223333:role/train",
    "image": "the URI of an image in ECR",
    "output_path": "a folder such as s3://bucket/jobs",
}
_CREDENTIALS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_KEPT = "/opt/ml/"


def require_types_and_counts(spec: Any) -> None:
    """Raise UsageError for the first field of a `TrainingSpec` that is of another type, or a count that cannot be."""
    for field in fields(spec):
        _require_type(field.name, getattr(spec, field.name), str(field.type))
    for name, most in _COUNTS.items():
        value = getattr(spec, name)
        if not 1 <= value <= most:
            raise UsageError(f"{name} is {value}.", f"It must be from 1 to {most}.", "give a number between them.")
    if spec.source_dir is not None and not fspath(spec.source_dir).strip():
        raise UsageError("The source_dir is empty.", "It names no folder.", "write '.' for this one, or leave it out.")


def _require_type(name: str, value: Any, annotation: str) -> None:
    required = annotation.removesuffix(" | None")
    wanted, types = _TYPES[required]
    if value is None and required != annotation:
        return
    texts: Sequence[object] = value if isinstance(value, tuple | list) else ()
    if isinstance(value, Mapping):
        texts = [*value, *value.values()]
    is_right = isinstance(value, types) and (bool in types or not isinstance(value, bool))
    if not is_right or not (name == "hyperparameters" or all(isinstance(text, str) for text in texts)):
        shown = f" {repr(value)[:80]}," if not texts else ""  # the values of a mapping may be secret
        conflict = f"It must be {wanted}{' or None' if required != annotation else ''}."
        raise UsageError(f"The argument {name} is{shown} of type {type(value).__name__}.", conflict, f"correct {name}.")
    if any("\0" in str(text) for text in texts or (value,)):
        raise UsageError(f"The argument {name} has a NUL in it.", "It must be text without one.", f"correct {name}.")


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


def require_hyperparameters(hyperparameters: Mapping[str, object], task: str | None) -> None:
    """Raise UsageError for a hyperparameter that is not an option of the workers, or SageMaker's own."""
    if task is not None and "task" in hyperparameters:
        raise UsageError(
            f"The task is {task!r}, and there is a hyperparameter 'task'.",
            "Both become the option --task.",
            "say it once, as task.",
        )
    spellings: dict[str, str] = {}
    for name, value in hyperparameters.items():
        _require_option(name, value)
        other = spellings.setdefault(name.replace("_", "-"), name)
        if other != name and task is not None:  # of a script, both may be options
            raise UsageError(
                f"There are hyperparameters {other!r} and {name!r}.", "Both are the same option.", "leave one out."
            )


def _require_option(name: object, value: object) -> None:
    if not isinstance(name, str) or not _OPTION.fullmatch(name):
        raise UsageError(
            f"A hyperparameter is called {str(name)[:80]!r}.",
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


def require_metrics(metrics: Mapping[str, str]) -> None:
    """Raise UsageError for what is not a regular expression."""
    for name, text in metrics.items():
        try:
            re.compile(text)
        except re.error as error:
            raise UsageError(
                f"The metric {name[:80]} has the regular expression {text[:80]!r}.",
                f"It cannot be one: {error}.",
                r"write e.g. loss=([0-9.]+); a bracket that is meant as such is \(.",
            ) from error


def require_cloud_fields(spec: Any) -> None:
    """Raise UsageError for the first field of a `TrainingSpec` that SageMaker's machines could not use."""
    for name, wanted in _NEEDED.items():
        if not getattr(spec, name):
            raise UsageError(
                f"The job has no {name}.",
                f"SageMaker asks for {wanted}.",
                f"give {name} (--{name.replace('_', '-')}); see docs/sagemaker.md.",
            )
    for name, (pattern, example) in _PATTERNS.items():
        value = getattr(spec, name)
        if value is not None and not pattern.fullmatch(value):
            raise UsageError(f"The {name} is {value[:80]!r}.", "There is none of that name.", f"write e.g. {example}.")
    for name in ("output_path", "checkpoint_s3_uri"):
        if getattr(spec, name) is not None:
            require_s3_uri(f"The {name}", getattr(spec, name))
    _require_spot_times(spec)
    _require_safe_and_kept(spec)


def _require_spot_times(spec: Any) -> None:
    """Refuse times that SageMaker refuses, by rules that its request model does not have."""
    wait = spec.max_wait_s
    if not spec.use_spot and wait is not None:
        conflict = "It is the time that is waited for spot instances, and use_spot is not given."
        raise UsageError(f"max_wait_s is {wait}.", conflict, "add use_spot (--use-spot), or leave max_wait_s out.")
    if spec.use_spot and (wait is None or wait < spec.max_run_s):
        raise UsageError(
            f"use_spot is given, and max_wait_s is {wait}."
            if wait is not None
            else "use_spot is given without max_wait_s.",
            f"It is the time of waiting and training together, so it is at least max_run_s, {spec.max_run_s}.",
            f"give max_wait_s (--max-wait-s), e.g. {2 * spec.max_run_s}.",
        )
    if spec.use_spot and spec.task is not None and spec.checkpoint_s3_uri is None:
        raise UsageError(
            "use_spot is given without checkpoint_s3_uri.",
            "After an interruption SageMaker starts the job on another machine, where it would begin at step 0.",
            "give checkpoint_s3_uri (--checkpoint-s3-uri s3://BUCKET/FOLDER).",
        )


def _require_safe_and_kept(spec: Any) -> None:
    """Refuse what would show secrets, and an output folder of hvdtrain that SageMaker does not keep."""
    for name in spec.environment:
        if name.upper() in _CREDENTIALS:
            raise UsageError(
                f"The environment has {name}.",
                "Everybody who may see the job would see its value.",
                "leave it out: in the container, AWS takes the job's role.",
            )
    for name in ("output-dir", "output_dir") if spec.task is not None else ():
        folder = str(spec.hyperparameters.get(name, _KEPT))
        if not folder.startswith(_KEPT):
            raise UsageError(
                f"The hyperparameter {name} is {folder[:200]!r}.",
                "What is written there would be lost with the machine.",
                f"leave it out: results go to output_path, checkpoints to checkpoint_s3_uri; SageMaker keeps {_KEPT}*.",
            )


def require_s3_uri(what: str, uri: str) -> None:
    """Raise UsageError unless `uri` is s3://, a bucket that there can be, and a key without control characters."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    bad = " ".join(map(repr, dict.fromkeys(re.findall(r"[^a-z0-9.-]", bucket) + re.findall(r"[\x00-\x1f\x7f]", key))))
    if not uri.startswith("s3://"):
        conflict = "SageMaker's machines read from S3."
    elif bad or not _BUCKET.fullmatch(bucket):
        conflict = f"It has {bad}." if bad else f"No bucket is called {bucket[:80]!r}."
    else:
        return
    hint = "write s3://bucket/key; buckets have 3 to 63 lowercase letters, digits, dots and hyphens."
    raise UsageError(f"{what} is {uri[:200]!r}.", conflict, hint)
