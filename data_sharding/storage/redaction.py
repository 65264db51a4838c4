"""URLs in messages: without passwords, tokens and signatures."""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

_HIDDEN: Final = "***"
_USER: Final = re.compile(r"(?<=://)[^/]*(?=@)")
_QUERY_VALUE: Final = re.compile(r"(?<==)[^&#]+")


def redacted(url: str) -> str:
    """The URL with users, passwords and HTTP query values (as of presigned URLs) as ***; a local path as it is."""
    address, mark, query = _parts(url)
    return _USER.sub(_HIDDEN, address) + mark + _QUERY_VALUE.sub(_HIDDEN, query)


def redacted_values(value: Any) -> Any:
    """A value as JSON has them, each text in it as `redacted`, also where it is an option `--name=URL`."""
    if isinstance(value, Mapping):
        return {name: redacted_values(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [redacted_values(inner) for inner in value]
    if not isinstance(value, str):
        return value
    option, mark, text = value.partition("=") if value.startswith("-") else ("", "", value)
    return option + mark + redacted(text)


def without_secrets(text: str, url: str) -> str:
    """`text`, an error's message, without the secret parts of `url` that it may quote."""
    if redacted(url) == url:
        return text
    address, _, query = _parts(url)
    users = [part for user in _USER.findall(address) for part in user.split(":")]
    secrets = {part for part in (*users, *_QUERY_VALUE.findall(query)) if part}
    text = text.replace(url, redacted(url))
    for secret in sorted(secrets | {unquote(part) for part in secrets}, key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    return text


def _parts(url: str) -> tuple[str, str, str]:
    """Up to the query, its question mark, the query. Elsewhere than in HTTP a question mark is part of a name."""
    is_web = url.rpartition("::")[2].startswith(("http://", "https://"))
    return url.partition("?") if is_web else (url, "", "")
