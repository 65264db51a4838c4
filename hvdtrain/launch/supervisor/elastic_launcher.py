"""What an elastic job needs of its launcher, and the limits that its user has set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from hvdtrain.comm.rendezvous.server import RendezvousServer
from hvdtrain.launch.job_spec import JobSpec

Variables = Mapping[str, str | None]


class ElasticLauncher(Protocol):
    """Workers have numbers, which stay; ranks are of one world."""

    @property
    def safe_at(self) -> float:
        """Before this time of the monotonic clock, workers that were given up may still run."""

    @property
    def look_at(self) -> float | None:
        """When `places` is to be asked again at the latest."""

    def start(self, number: int) -> str:
        """Start one more worker, which waits for its first world; returns its host, "" where all are on this one."""

    server: RendezvousServer  # where the workers of the newest world meet

    def open_world(self, numbers: Sequence[int], restarts: int) -> list[Variables]:
        """Let these workers meet, in this order of ranks; the variables of each."""

    def places(self) -> int:
        """For how many workers there is room now."""

    def placed(self, numbers: Sequence[int]) -> list[int]:
        """Those of these workers, in their order, for which there is room where they are, as `places` found it."""

    def tell(self, number: int, order: Mapping[str, Any]) -> None:
        """Send an order to a worker."""

    def kill(self, number: int) -> None:
        """SIGKILL a worker."""


@dataclass(frozen=True, slots=True)
class ElasticLimits:
    """Attributes:
    least, most: workers of a world.
    restarts: how often a loss may be mended.
    grace: seconds in which the others must come back after a loss, and in which a worker must leave that is told to.
    start_timeout: seconds in which a worker that was started must be able to join.
    backoff: seconds after which a further worker is started where one could not be; after each one more, twice as many.
    """

    least: int
    most: int
    restarts: int
    grace: float
    start_timeout: float
    backoff: float = 1.0

    @classmethod
    def of(cls, job: JobSpec) -> Self:
        least, most = job.world_sizes
        return cls(least, most, job.max_restarts, job.grace, job.start_timeout, max(1.0, job.backoff))
