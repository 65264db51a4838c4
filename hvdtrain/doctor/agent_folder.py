"""Whether hosts write to one folder: each makes a token file, looks for the others', and removes its own."""

from __future__ import annotations

import os
import re
import time
from types import TracebackType
from typing import Any, Self

_TOKEN = re.compile(r"[0-9a-f]{8,64}-\d{1,6}")
_PREFIX = ".hvdtrain-doctor-"


class TokenFiles:
    """The token files of one agent. A context manager: leaving it removes those that are still there."""

    def __init__(self) -> None:
        self._made: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for path in self._made:
            os.unlink(path)

    def mark(self, folder: str, token: str, step: str, wanted: int = 0, seconds: float = 0.0) -> Any:
        """One step of the comparison.

        Args:
            folder: which is there on this host.
            token: "HEX-NUMBER"; HEX is the same for all hosts, NUMBER is this host's.
            step: "make"; "look": returns the sorted numbers of all token files that are seen; or "remove".
            wanted: of "look", how many there should be; network disks show new files a while later.
            seconds: how long to wait for them.

        Raises:
            OSError: the folder cannot be written.
            ValueError: no such step, or a token that is none.
        """
        if not _TOKEN.fullmatch(token):
            raise ValueError(f"{token!r} is not a token")
        path = os.path.join(folder, _PREFIX + token)
        if step == "make":
            _make(path)
            self._made.add(path)
        elif step == "look":
            return _look(folder, _PREFIX + token.partition("-")[0] + "-", wanted, time.monotonic() + seconds)
        elif step == "remove":
            os.unlink(path)
            self._made.discard(path)
        else:
            raise ValueError(f"there is no step {step!r}")
        return None


def _make(path: str) -> None:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
    except FileNotFoundError as error:
        if not os.path.isdir(os.path.dirname(path)):
            raise
        raise OSError("it belongs to a file system in which nobody makes files, as /proc is") from error
    except OSError as error:
        raise OSError(error.strerror) from error  # the token's name says nothing to the reader


def _look(folder: str, prefix: str, wanted: int, deadline: float) -> list[int]:
    while True:
        names = [name for name in os.listdir(folder) if name.startswith(prefix)]
        if len(names) >= wanted or time.monotonic() > deadline:
            return sorted(int(name.removeprefix(prefix)) for name in names)
        time.sleep(0.1)  # a network disk gives no notice of what other hosts do
