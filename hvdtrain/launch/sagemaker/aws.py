"""All calls of AWS, by boto3: upload files, create a training job, follow it, and explain what AWS refuses."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hvdtrain.errors import HvdtrainError, UsageError

CONNECT_SECONDS = 10
READ_SECONDS = 60
ATTEMPTS = 6  # of one call, with growing pauses between them: botocore's mode "standard"


_HINTS = {
    "AccessDenied": "let whoever calls this do what the message names (IAM policy), or use another AWS_PROFILE.",
    "ExpiredToken": "sign in again, e.g. `aws sso login`.",
    "InvalidToken": "sign in again: the credentials are not valid here.",
    "ResourceLimitExceeded": "ask for a higher quota in Service Quotas (Amazon SageMaker, training job usage), or take "
    "another instance type or count.",
    "ResourceInUse": "choose another job name; left out, it has the time in it.",
    "Validation": "correct what the message names.",
    "Throttling": "wait a minute and try again.",
    "CapacityError": "try again later, another instance type or another region.",
    "NoSuchBucket": "make the bucket, in the job's region, or correct its name.",
    "PermanentRedirect": "use a bucket in the job's region.",
    "ResourceNotFound": "check the name and the region.",
}
_SAME = {
    "AccessDenied": ("AccessDeniedException", "AllAccessDisabled", "403", "Forbidden", "UnauthorizedOperation"),
    "ExpiredToken": ("ExpiredTokenException", "RequestExpired"),
    "InvalidToken": (
        "UnrecognizedClientException",
        "InvalidClientTokenId",
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
    ),
    "Validation": ("ValidationException",),
    "Throttling": ("ThrottlingException",),
    "NoSuchBucket": ("404",),
    "PermanentRedirect": ("301",),
}
"""Key of _HINTS → other codes of the same meaning."""
_REFUSALS = ("AccessDenied", "ExpiredToken", "InvalidToken", "ResourceInUse", "Validation", "NoSuchBucket")
"""Errors that the same call would get again, so they count as wrong usage."""
_CREDENTIALS = (
    "set AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or sign in with `aws sso login`; "
    "--dry-run needs none."
)
_S3_CODE = re.compile(r"An error occurred \((\w+)\)")


class Service:
    """SageMaker, S3 and CloudWatch Logs of one region.

    `profile` is of the AWS configuration; `kms_key` encrypts uploads. None: those of the environment and the bucket.
    Raises UsageError: boto3 is not installed, or there is no such profile.
    """

    def __init__(self, region: str, profile: str | None = None, kms_key: str | None = None) -> None:
        try:
            import boto3
            from botocore.config import Config
        except ImportError as error:
            raise UsageError(
                "boto3 is not installed.",
                "It hands the job over to SageMaker.",
                "pip install 'hvdtrain[sagemaker]', or add --dry-run to print the request.",
            ) from error
        self._kms_key = kms_key
        config = Config(
            retries={"mode": "standard", "max_attempts": ATTEMPTS},
            connect_timeout=CONNECT_SECONDS,
            read_timeout=READ_SECONDS,
        )
        with explained("Connecting to AWS"):
            session = boto3.session.Session(profile_name=profile, region_name=region)
            self._s3 = session.client("s3", config=config)
            self._sagemaker = session.client("sagemaker", config=config)
            self._logs = session.client("logs", config=config)

    def upload(self, path: Path, uri: str) -> None:
        parts = urlsplit(uri)
        encryption = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": self._kms_key} if self._kms_key else {}
        with explained(f"Uploading {path.name} to {uri}"):
            self._s3.upload_file(str(path), parts.netloc, parts.path.lstrip("/"), ExtraArgs=encryption)

    def create(self, request: dict[str, Any]) -> str:
        """Start a job; returns its ARN. Errors as `explained`."""
        with explained(f"Creating the training job {request['TrainingJobName']}"):
            return str(self._sagemaker.create_training_job(**request)["TrainingJobArn"])

    def require_new(self, job_name: str) -> None:
        """Raise UsageError if there is a job of that name, whose files an upload would replace."""
        from botocore.exceptions import ClientError

        with explained(f"Asking for the training job {job_name}"):
            try:
                self._sagemaker.describe_training_job(TrainingJobName=job_name)
            except ClientError as error:
                # The API documents ResourceNotFound and answers ValidationException: "Requested resource not found."
                if error.response.get("Error", {}).get("Code") in ("ResourceNotFound", "ValidationException"):
                    return
                raise
        raise UsageError(
            f"There is a training job {job_name}.",
            "Its source and its model are where this one's would be.",
            "choose another job name; left out, it has the time in it.",
        )

    def describe(self, job_name: str) -> dict[str, Any]:
        """What SageMaker says of a job: API_DescribeTrainingJob. Errors as `explained`."""
        with explained(f"Asking for the training job {job_name}"):
            answer: dict[str, Any] = self._sagemaker.describe_training_job(TrainingJobName=job_name)
            return answer

    def stop(self, job_name: str) -> None:
        """Ask SageMaker to stop a job: workers get SIGTERM and 120 s. Errors as `explained`."""
        with explained(f"Stopping the training job {job_name}"):
            self._sagemaker.stop_training_job(TrainingJobName=job_name)

    def log_streams(self, group: str, prefix: str) -> list[str]:
        """Names of a log group's streams that begin with `prefix`; none while there is no such group."""
        with explained(f"Listing the logs of {prefix}"):
            pages = self._logs.get_paginator("describe_log_streams")
            try:
                answer = pages.paginate(logGroupName=group, logStreamNamePrefix=prefix).build_full_result()
            except self._logs.exceptions.ResourceNotFoundException:
                return []
            return [str(stream["logStreamName"]) for stream in answer["logStreams"]]

    def log_lines(self, group: str, stream: str, token: str | None) -> tuple[list[str], str]:
        """Lines of a stream from `token` on (None: its beginning), and the token of what follows."""
        begin = {"nextToken": token} if token is not None else {"startFromHead": True}
        with explained(f"Reading the log {stream}"):
            answer = self._logs.get_log_events(logGroupName=group, logStreamName=stream, **begin)
        return [str(event["message"]) for event in answer["events"]], str(answer["nextForwardToken"])


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn what boto3 raises into our errors, whose fact is "`what` failed". Raises UsageError: no credentials or
    region, or a refusal that the same call would meet again; HvdtrainError: any other answer, or none."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        answer = error.response.get("Error", {})
        raise _answer(what, str(answer.get("Code", "unknown")), str(answer.get("Message", ""))) from error
    except (BotoCoreError, Boto3Error) as error:
        raise _failure(what, error) from error


def _answer(what: str, code: str, message: str) -> HvdtrainError:
    kind = next((kind for kind, codes in _SAME.items() if code in codes), code)
    said = " ".join(message.split()) or "no reason given"
    error = UsageError if kind in _REFUSALS else HvdtrainError
    return error(f"{what} failed: {code}.", f"AWS says: {said.rstrip('.')}.", _HINTS.get(kind, "see the message."))


def _failure(what: str, error: Exception) -> HvdtrainError:
    name = type(error).__name__
    said = " ".join(str(error).split()).rstrip(".")
    within = _S3_CODE.search(said)
    if within:  # boto3's transfers wrap the answer in a sentence
        return _answer(what, within[1], said)
    if name in ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound"):
        return UsageError(f"{what} failed: there are no AWS credentials.", f"boto3 says: {said}.", _CREDENTIALS)
    if "Token" in name or "SSO" in name:
        return UsageError(f"{what} failed: signing in has expired.", f"boto3 says: {said}.", _HINTS["ExpiredToken"])
    if name == "NoRegionError":
        return UsageError(f"{what} failed: {said}.", "AWS has an address in each region.", "give region (--region).")
    return HvdtrainError(
        f"{what} failed: {name}.", f"boto3 says: {said}.", "check the network and the region, and try again."
    )
