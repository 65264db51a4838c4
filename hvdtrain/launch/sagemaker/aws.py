"""All calls of AWS, by boto3: upload files, create a training job, follow it, and explain what AWS refuses."""

import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hvdtrain.errors import HvdtrainError, UsageError

CONNECT_SECONDS = 10
READ_SECONDS = 60
ATTEMPTS = 6  # of one call, with growing pauses between them: botocore's mode "standard"
ENDED = ("Completed", "Failed", "Stopped")
OUTAGE_SECONDS = 900.0  # how long AWS may not be reached while a job is waited for
LOG_GROUP = "/aws/sagemaker/TrainingJobs"
POLL_SECONDS = 15.0
MAX_PENDING_SECONDS = 3 * 3600
"""How long `wait` waits for machines, besides the job's own limits; the job itself continues."""

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
    "AccessDenied": ("AllAccessDisabled", "403", "Forbidden", "UnauthorizedOperation"),
    "ExpiredToken": ("RequestExpired",),
    "InvalidToken": ("UnrecognizedClient", "InvalidClientTokenId", "InvalidAccessKeyId", "SignatureDoesNotMatch"),
    "NoSuchBucket": ("404",),
    "PermanentRedirect": ("301",),
}
"""Key of _HINTS → other codes of the same meaning, without "Exception" at the end."""
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
            self.sagemaker = session.client("sagemaker", config=config)
            self.logs = session.client("logs", config=config)

    def upload(self, path: Path, uri: str) -> None:
        parts = urlsplit(uri)
        encryption = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": self._kms_key} if self._kms_key else {}
        with explained(f"Uploading {path.name} to {uri}"):
            self._s3.upload_file(str(path), parts.netloc, parts.path.lstrip("/"), ExtraArgs=encryption)

    def create(self, request: dict[str, Any]) -> str:
        """Start a job; returns its ARN. Errors as `explained`."""
        with explained(f"Creating the training job {request['TrainingJobName']}"):
            return str(self.sagemaker.create_training_job(**request)["TrainingJobArn"])

    def require_new(self, job_name: str) -> None:
        """Raise UsageError if there is a job of that name, whose files an upload would replace."""
        from botocore.exceptions import ClientError

        with explained(f"Asking for the training job {job_name}"):
            try:
                self.sagemaker.describe_training_job(TrainingJobName=job_name)
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


@dataclass(frozen=True)
class TrainingJob:
    """A job by its name, which is asked for every `poll_s` seconds. Errors of all methods as `explained`."""

    name: str
    service: Service
    poll_s: float = POLL_SECONDS

    def describe(self) -> dict[str, Any]:
        """What SageMaker says of the job: API_DescribeTrainingJob."""
        with explained(f"Asking for the training job {self.name}"):
            answer: dict[str, Any] = self.service.sagemaker.describe_training_job(TrainingJobName=self.name)
            return answer

    def stop(self) -> None:
        """Ask SageMaker to stop the job: workers get SIGTERM and 120 s."""
        with explained(f"Stopping the training job {self.name}"):
            self.service.sagemaker.stop_training_job(TrainingJobName=self.name)

    def wait(self, timeout_s: float, logs: bool = False) -> dict[str, Any]:
        """Return what SageMaker says of the job when it has completed; after `timeout_s` seconds it is not ended.

        With `logs`, the workers' logs are printed as they come. Raises HvdtrainError: it failed or was stopped, or is
        still running after `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        read_to: dict[str, str] = {}
        seen = ""
        while True:
            answer = self._describe_patiently(deadline)
            logs = logs and self._print_log(read_to)
            state = str(answer.get("SecondaryStatus") or answer["TrainingJobStatus"])
            if state != seen:
                sys.stderr.write(f"{self.name}: {state}\n")
            seen = state
            if answer["TrainingJobStatus"] in ENDED:
                break
            if time.monotonic() + self.poll_s > deadline:
                raise HvdtrainError(
                    f"The training job {self.name} is still {answer['TrainingJobStatus']} after {timeout_s:.0f} s.",
                    "Waiting has a limit; the job has not been ended.",
                    f"`aws sagemaker stop-training-job --training-job-name {self.name}` ends it.",
                )
            time.sleep(self.poll_s)  # the service can only be asked
        if logs:
            self._print_log(read_to)
        _require_completed(self.name, answer)
        return answer

    def _describe_patiently(self, deadline: float) -> dict[str, Any]:
        """As `describe`; a network failure of some minutes must not end the wait for a job that still runs."""
        deadline = min(deadline, time.monotonic() + OUTAGE_SECONDS)
        while True:
            try:
                return self.describe()
            except UsageError:
                raise
            except HvdtrainError as error:
                if time.monotonic() + self.poll_s > deadline:
                    raise
                sys.stderr.write(f"{self.name}: {error.fact} The job goes on; asking again.\n")
            time.sleep(self.poll_s)

    def _print_log(self, read_to: dict[str, str]) -> bool:
        """Print what is new in the logs of all machines after the tokens of their streams; whether they may be read."""
        try:
            for stream in self._log_streams():
                machine = stream.removeprefix(f"{self.name}/").rpartition("-")[0]  # algo-1-1700000000: name and time
                while True:
                    before = read_to.get(stream)
                    begin = {"startFromHead": True} if before is None else {"nextToken": before}
                    with explained(f"Reading the log {stream}"):
                        answer = self.service.logs.get_log_events(logGroupName=LOG_GROUP, logStreamName=stream, **begin)
                    sys.stdout.writelines(f"{machine}: {event['message']}\n" for event in answer["events"])
                    read_to[stream] = answer["nextForwardToken"]
                    if read_to[stream] == before or not answer["events"]:
                        break
        except UsageError as error:  # such as a missing permission: the job continues without it
            sys.stderr.write(f"{self.name}: its log is not shown. {error}\n")
            return False
        except HvdtrainError as error:
            sys.stderr.write(f"{self.name}: {error.fact} Its log comes later.\n")
        sys.stdout.flush()
        return True

    def _log_streams(self) -> list[str]:
        """Names of the streams of all machines; none while there is no log at all."""
        with explained(f"Listing the logs of {self.name}/"):
            pages = self.service.logs.get_paginator("describe_log_streams")
            try:
                answer = pages.paginate(logGroupName=LOG_GROUP, logStreamNamePrefix=f"{self.name}/").build_full_result()
            except self.service.logs.exceptions.ResourceNotFoundException:
                return []
            return [str(stream["logStreamName"]) for stream in answer["logStreams"]]


def _require_completed(name: str, answer: dict[str, Any]) -> None:
    status = answer["TrainingJobStatus"]
    if status == "Completed":
        return
    reason = " ".join(str(answer.get("FailureReason") or "").split())
    if status == "Stopped":
        raise HvdtrainError(
            f"The training job {name} was stopped ({answer.get('SecondaryStatus', status)}).",
            reason or "It did not train to its end.",
            "with checkpoint_s3_uri, the same job started again continues from its last checkpoint.",
        )
    raise HvdtrainError(
        f"The training job {name} failed.",
        f"SageMaker says: {reason or 'no reason'}",
        f"its whole log is in CloudWatch: `aws logs tail {LOG_GROUP} --log-stream-name-prefix {name}/`.",
    )


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
    name = code.removesuffix("Exception")
    kind = next((kind for kind, codes in _SAME.items() if name in codes), name)
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
