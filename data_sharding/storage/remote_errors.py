"""From the exceptions of fsspec and of the libraries under it to one sentence of fact, one of conflict, one HINT.

Some fifty exception types of botocore, aiohttp, google-auth and the standard library say eight different things. They
are told apart by name: the libraries are extras, and need not be installed.
"""

import enum
from collections.abc import Iterator
from typing import Any, Final

from data_sharding.errors import MissingDataError
from data_sharding.storage.redaction import redacted, without_secrets


class Trouble(enum.Enum):
    """What an exception means: one sentence of fact, one of conflict, and a hint."""

    NO_CREDENTIALS = (
        "No credentials for {url} were found{tried}.",
        "The store answers only those it knows",
        "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role; for public data "
        "set FSSPEC_S3_ANON=true.",
    )
    DENIED = (
        "Access to {url} was denied{tried}.",
        "The credentials in use may not read it, or have expired",
        "check them and the bucket's policy.",
    )
    UNREACHABLE = (
        "{url} cannot be reached{tried}.",
        "No connection to the store could be made",
        "check the network, and AWS_ENDPOINT_URL if one is set.",
    )
    TIMEOUT = (
        "{url} was not answered in time{tried}.",
        "The store, or the network to it, does not respond",
        "try again later.",
    )
    NO_BUCKET = (
        "{url} is in a bucket that does not exist.",
        "There is nothing to read",
        "check the bucket's name, and AWS_ENDPOINT_URL if one is set.",
    )
    OUT_OF_RANGE = (
        "{url} has no bytes where they were asked for.",
        "It is shorter than its store says",
        "index the data again.",
    )
    BROKEN_ANSWER = ("{url} could not be read{tried}.", "The store failed to answer, or broke off", "try again later.")
    OTHER = ("{url} could not be read{tried}.", "The store refused", "check the URL and the store's settings.")
    NOT_FOUND = ()


class ShortAnswerError(Exception):
    """A store answered with fewer bytes than were asked for."""


# In the order in which they are looked for: fsspec's HTTP file system wraps every failure in FileNotFoundError.
_NAMES: Final = {
    Trouble.NO_CREDENTIALS: (
        "NoCredentialsError PartialCredentialsError CredentialRetrievalError ProfileNotFound TokenRetrievalError "
        "SSOTokenLoadError UnauthorizedSSOTokenError DefaultCredentialsError RefreshError"
    ),
    Trouble.DENIED: "PermissionError",
    Trouble.UNREACHABLE: (
        "EndpointConnectionError ConnectTimeoutError ProxyConnectionError ClientConnectorError ConnectionRefusedError "
        "gaierror"
    ),
    Trouble.TIMEOUT: "TimeoutError ReadTimeoutError",
    Trouble.BROKEN_ANSWER: (
        "ShortAnswerError ClientPayloadError ServerDisconnectedError ClientOSError ConnectionClosedError "
        "ResponseStreamingError HTTPClientError IncompleteRead IncompleteReadError ResponseParserError "
        "ConnectionResetError BrokenPipeError"
    ),
    Trouble.NOT_FOUND: "FileNotFoundError",
}

_CODES: Final = {
    "NoSuchBucket": Trouble.NO_BUCKET,
    "InvalidRange": Trouble.OUT_OF_RANGE,
    "SlowDown": Trouble.BROKEN_ANSWER,
    "RequestTimeout": Trouble.TIMEOUT,
    "InternalError": Trouble.BROKEN_ANSWER,
    401: Trouble.DENIED,
    403: Trouble.DENIED,
    404: Trouble.NOT_FOUND,
    408: Trouble.TIMEOUT,
    416: Trouble.OUT_OF_RANGE,
    429: Trouble.BROKEN_ANSWER,
}

_EXTRAS: Final = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}


def trouble_of(error: BaseException) -> Trouble:
    """What `error`, or what caused it, means."""
    chain = list(_causes(error))
    for link in chain:
        for code in _codes(link):
            if code in _CODES:
                return _CODES[code]
            if isinstance(code, int) and 500 <= code < 600:
                return Trouble.BROKEN_ANSWER
    names = {kind.__name__ for link in chain for kind in type(link).__mro__}
    return next((trouble for trouble, known in _NAMES.items() if names & set(known.split())), Trouble.OTHER)


def is_transient(error: BaseException) -> bool:
    """Whether asking again may help."""
    return trouble_of(error) in (Trouble.UNREACHABLE, Trouble.TIMEOUT, Trouble.BROKEN_ANSWER)


def shown_cause(url: str, error: Exception) -> Exception | None:
    """`error` as the `__cause__` of ours; None where `url` has secrets, which its message or traceback may quote."""
    return error if redacted(url) == url else None


def unreadable(url: str, error: Exception, attempts: int, seconds: float) -> Exception:
    """The exception to raise for `error`, the last of several attempts: FileNotFoundError for an absent object."""
    trouble, name = trouble_of(error), redacted(url)
    if trouble is Trouble.NOT_FOUND:
        return FileNotFoundError(name)
    tried = f" after {attempts} attempts in {seconds:.1f} s" if attempts > 1 else ""
    fact, conflict, hint = trouble.value
    last = without_secrets(f"{type(error).__name__}: {error}", url).rstrip(".")
    return MissingDataError(fact.format(url=name, tried=tried), f"{conflict} ({last}).", hint)


def no_filesystem(url: str, error: Exception) -> MissingDataError:
    """The error for a URL that fsspec does not open: its protocol is unknown, or the package for it not installed."""
    protocol = url.rpartition("::")[2].partition("://")[0]
    fact = f"{redacted(url)} cannot be read."
    last = without_secrets(str(error), url).rstrip(".")
    if not isinstance(error, ImportError):
        return MissingDataError(fact, f"{last}.", "check the URL; s3:// and gs:// are the usual ones.")
    extra = _EXTRAS.get(protocol)
    hint = f"install it: pip install 'hvdtrain[{extra}]'." if extra else "install the package that is named."
    return MissingDataError(fact, f"The package that reads {protocol}:// is not installed ({last}).", hint)


def missing(url: str) -> MissingDataError:
    return MissingDataError(f"{redacted(url)} does not exist.", "Its records cannot be read.", "check the URL.")


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _codes(error: BaseException) -> Iterator[str | int]:
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore's ClientError
        code = response.get("Error", {}).get("Code", "")
        yield int(code) if code.isdigit() else code
        yield int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    for name in ("status", "code"):  # aiohttp's ClientResponseError, gcsfs's HttpError
        value = getattr(error, name, None)
        if isinstance(value, int):
            yield value
