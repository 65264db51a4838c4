"""What only jobs on SageMaker's machines may be refused for: places in S3, role, image, region, credentials."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hvdtrain.errors import UsageError

if TYPE_CHECKING:
    from hvdtrain.launch.sagemaker.spec import TrainingSpec

_ROLE = re.compile(r"arn:aws[a-z\-]*:iam::\d{12}:role/?[a-zA-Z_0-9+=,.@\-_/]+")
_S3_FOLDER = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^\s]*)?")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_REGION = re.compile(r"[a-z]{2,4}(-[a-z]+)+-\d{1,2}")
_CREDENTIALS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_KEPT = "/opt/ml/"


def require_cloud(spec: TrainingSpec) -> None:
    """Raise UsageError for the first thing that SageMaker's machines could not do."""
    _require_needed(spec)
    _require_named(spec)
    _require_s3_folders(spec)
    _require_kept_results(spec)
    _require_no_credentials(spec)


def _require_needed(spec: TrainingSpec) -> None:
    needed = {
        "role": (spec.role, "an ARN such as arn:aws:iam::111122223333:role/train"),
        "image": (spec.image, "the URI of an image in ECR"),
        "output_path": (spec.output_path, "a folder such as s3://bucket/jobs"),
    }
    for name, (value, example) in needed.items():
        if not value:
            flag = "--" + name.replace("_", "-")
            raise UsageError(
                f"The job has no {name}.",
                f"SageMaker asks for {example}.",
                f"give {name} ({flag}); see docs/sagemaker.md.",
            )


def _require_named(spec: TrainingSpec) -> None:
    if not _ROLE.fullmatch(spec.role or ""):
        raise UsageError(
            f"The role is {str(spec.role)[:80]!r}.",
            "SageMaker takes a role by its full ARN.",
            "`aws iam get-role --role-name NAME` prints it.",
        )
    if re.search(r"\s", spec.image or ""):
        raise UsageError(
            f"The image is {str(spec.image)[:80]!r}.",
            "The URI of an image has no space in it.",
            "write image (--image) as ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME:TAG.",
        )
    if spec.region is not None and not _REGION.fullmatch(spec.region):
        raise UsageError(
            f"The region is {spec.region[:80]!r}.",
            "Regions have names such as us-east-1.",
            "choose one of AWS's regions.",
        )


def _require_s3_folders(spec: TrainingSpec) -> None:
    for name, uri in (("output_path", spec.output_path), ("checkpoint_s3_uri", spec.checkpoint_s3_uri)):
        if uri is not None and not _S3_FOLDER.fullmatch(uri):
            raise UsageError(
                f"The {name} is {uri[:80]!r}.",
                f"It is no folder in S3{_bad_characters(uri)}.",
                f"write {name} as s3://bucket/folder; buckets have lowercase letters, digits, dots and hyphens.",
            )


def _bad_characters(uri: str) -> str:
    """For a message: what an s3:// URI has that it cannot have."""
    bucket, slash, key = uri.removeprefix("s3://").partition("/")
    bad = dict.fromkeys([*re.findall(r"[^a-z0-9.-]", bucket), *re.findall(r"\s", key)])
    return f": it has {' '.join(repr(mark) for mark in bad)}" if uri.startswith("s3://") and bad else ""


def require_s3_place(what: str, uri: str) -> None:
    """Raise UsageError unless an s3:// URI names a bucket that there can be, and a key without control characters."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    bad = dict.fromkeys([*re.findall(r"[^a-z0-9.-]", bucket), *re.findall(r"[\x00-\x1f\x7f]", key)])
    if bad or not _BUCKET.fullmatch(bucket):
        named = f"It has {' '.join(repr(mark) for mark in bad)}" if bad else f"No bucket is called {bucket[:80]!r}"
        raise UsageError(
            f"{what} is {uri[:200]!r}.",
            f"{named}.",
            "write s3://bucket/key; buckets have 3 to 63 lowercase letters, digits, dots and hyphens.",
        )


def _require_no_credentials(spec: TrainingSpec) -> None:
    for name in spec.environment:
        if name.upper() in _CREDENTIALS:
            raise UsageError(
                f"The environment has {name}.",
                "Whoever may see the job would see its value.",
                "leave it out: in the container, AWS takes the job's role.",
            )


def _require_kept_results(spec: TrainingSpec) -> None:
    for name in ("output-dir", "output_dir") if spec.task is not None else ():
        place = str(spec.hyperparameters.get(name, _KEPT))
        if not place.startswith(_KEPT):
            raise UsageError(
                f"The hyperparameter {name} is {place[:200]!r}.",
                "What is written there would be lost with the machine.",
                f"leave it out: results go to output_path, checkpoints to checkpoint_s3_uri; SageMaker keeps {_KEPT}*.",
            )
