"""What AWS answers, in our three parts: what was refused, why, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from hvdtrain.errors import HvdtrainError, UsageError

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
    "AccessDeniedException": "AccessDenied",
    "AllAccessDisabled": "AccessDenied",
    "403": "AccessDenied",
    "Forbidden": "AccessDenied",
    "UnauthorizedOperation": "AccessDenied",
    "ExpiredTokenException": "ExpiredToken",
    "RequestExpired": "ExpiredToken",
    "UnrecognizedClientException": "InvalidToken",
    "InvalidClientTokenId": "InvalidToken",
    "InvalidAccessKeyId": "InvalidToken",
    "SignatureDoesNotMatch": "InvalidToken",
    "ValidationException": "Validation",
    "ThrottlingException": "Throttling",
    "404": "NoSuchBucket",
    "301": "PermanentRedirect",
}
_REFUSALS = ("AccessDenied", "ExpiredToken", "InvalidToken", "ResourceInUse", "Validation", "NoSuchBucket")
"""What the same call would meet again, so that it counts as bad usage."""
_CREDENTIALS = (
    "set AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or sign in with `aws sso login`; "
    "--dry-run needs none."
)
_S3_CODE = re.compile(r"An error occurred \((\w+)\)")


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn what boto3 raises into our errors.

    Args:
        what: what is being done, for "… failed".

    Raises:
        UsageError: no credentials or region, or a refusal that the same call would meet again.
        HvdtrainError: any other answer, or none.
    """
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", "unknown"))
        raise _answer(what, code, str(error.response.get("Error", {}).get("Message", ""))) from error
    except (BotoCoreError, Boto3Error) as error:
        raise _failure(what, error) from error


def _answer(what: str, code: str, message: str) -> HvdtrainError:
    kind = _SAME.get(code, code)
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
