"""How long and how often a request to a remote store is retried."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from data_sharding.errors import ShardingError
from data_sharding.storage.remote_errors import is_transient, shown_cause, unreadable

T = TypeVar("T")

_JITTER: Final = random.SystemRandom()  # of its own: the program's draws stay what its seed made them


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Limits for one operation on a remote store, in seconds.

    Attributes:
        request_s: an answer to one request, its body included.
        attempts: times that a request is sent before it is given up.
        pause_s: longest wait before the second attempt; doubles with each. A random share of it is waited, so that
            workers that were refused together do not come back together.
        total_s: no attempt starts later than this after the first.
    """

    request_s: float = 60.0
    attempts: int = 5
    pause_s: float = 0.5
    total_s: float = 180.0

    def call(self, url: str, ask: Callable[[float], T]) -> T:
        """Call `ask` with a time limit in seconds until it returns, or fails in a way that asking again won't mend.

        Raises:
            FileNotFoundError: there is no such object; the caller knows what that means.
            MissingDataError: any other failure, in words, the last one of them where there were several.
        """
        begin = time.monotonic()
        for attempt in range(1, self.attempts + 1):
            try:
                return ask(self.request_s)
            except ShardingError:
                raise
            except Exception as error:
                pause = _JITTER.uniform(0.5, 1.0) * self.pause_s * 2 ** (attempt - 1)
                waited = time.monotonic() - begin
                if not is_transient(error) or attempt == self.attempts or waited + pause > self.total_s:
                    raise unreadable(url, error, attempt, waited) from shown_cause(url, error)
            time.sleep(pause)
        raise ValueError(f"{self.attempts} attempts are too few to ask once")


RETRY: Final = RetryPolicy()
