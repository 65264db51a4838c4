"""Checks of the arguments of a job on SageMaker's machines: locations in S3, role, image, region."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from hvdtrain.errors import UsageError

_NEEDED = {
    "role": "an ARN such as arn:aws:iam::111122223333:role/train",
    "image": "the URI of an image in ECR",
    "output_path": "a folder such as s3://bucket/jobs",
}
_PATTERNS = {
    "instance_type": (
        r"ml\.[a-z0-9-]+\.[a-z0-9-]+",
        "SageMaker's have names such as ml.p4d.24xlarge.",
        "choose one of those, or 'local' for this machine.",
    ),
    "role": (
        r"arn:aws[a-z\-]*:iam::\d{12}:role/?[a-zA-Z_0-9+=,.@\-_/]+",
        "SageMaker takes a role by its full ARN.",
        "`aws iam get-role --role-name NAME` prints it.",
    ),
    "image": (
        r"\S+",
        "The URI of an image has no space in it.",
        "write image (--image) as ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME:TAG.",
    ),
    "region": (
        r"[a-z]{2,4}(-[a-z]+)+-\d{1,2}",
        "Regions have names such as us-east-1.",
        "choose one of AWS's regions.",
    ),
}
_S3_FOLDER = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^\s]*)?")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_CREDENTIALS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_KEPT = "/opt/ml/"


def require_fields(spec: Any) -> None:
    """Raise UsageError for the first field of a `TrainingSpec` that SageMaker's machines could not use."""
    for name, (pattern, conflict, hint) in _PATTERNS.items():
        value = getattr(spec, name)
        is_missing = value is None or (value == "" and name in _NEEDED)
        if not is_missing and not re.fullmatch(pattern, value):
            raise UsageError(f"The {name.replace('_', ' ')} is {value[:80]!r}.", conflict, hint)
    for name, wanted in _NEEDED.items():
        if not getattr(spec, name):
            raise UsageError(
                f"The job has no {name}.",
                f"SageMaker asks for {wanted}.",
                f"give {name} (--{name.replace('_', '-')}); see docs/sagemaker.md.",
            )
    for name in ("output_path", "checkpoint_s3_uri"):
        uri = getattr(spec, name)
        if uri is not None and not _S3_FOLDER.fullmatch(uri):
            bad = _bad_characters(uri, r"\s") if uri.startswith("s3://") else ""
            raise UsageError(
                f"The {name} is {uri[:80]!r}.",
                f"It is not a folder in S3{f': it has {bad}' if bad else ''}.",
                f"write {name} as s3://bucket/folder; buckets have lowercase letters, digits, dots and hyphens.",
            )


def require_no_credentials(environment: Iterable[str]) -> None:
    """Raise UsageError for variables whose names are those of AWS's secrets."""
    for name in environment:
        if name.upper() in _CREDENTIALS:
            raise UsageError(
                f"The environment has {name}.",
                "Everybody who may see the job would see its value.",
                "leave it out: in the container, AWS takes the job's role.",
            )


def require_kept_results(hyperparameters: Mapping[str, object]) -> None:
    """Raise UsageError for an output folder of hvdtrain that SageMaker does not keep."""
    for name in ("output-dir", "output_dir"):
        folder = str(hyperparameters.get(name, _KEPT))
        if not folder.startswith(_KEPT):
            raise UsageError(
                f"The hyperparameter {name} is {folder[:200]!r}.",
                "What is written there would be lost with the machine.",
                f"leave it out: results go to output_path, checkpoints to checkpoint_s3_uri; SageMaker keeps {_KEPT}*.",
            )


def require_s3_uri(what: str, uri: str) -> None:
    """Raise UsageError unless an s3:// URI names a bucket that there can be, and a key without control characters."""
    bucket = uri.removeprefix("s3://").partition("/")[0]
    bad = _bad_characters(uri, r"[\x00-\x1f\x7f]")
    if bad or not _BUCKET.fullmatch(bucket):
        raise UsageError(
            f"{what} is {uri[:200]!r}.",
            f"It has {bad}." if bad else f"No bucket is called {bucket[:80]!r}.",
            "write s3://bucket/key; buckets have 3 to 63 lowercase letters, digits, dots and hyphens.",
        )


def _bad_characters(uri: str, of_key: str) -> str:
    """The characters that the bucket or key of an s3:// URI cannot have, as a message quotes them."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    bad = dict.fromkeys([*re.findall(r"[^a-z0-9.-]", bucket), *re.findall(of_key, key)])
    return " ".join(repr(mark) for mark in bad)
