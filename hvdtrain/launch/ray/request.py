"""What the launcher asks of the process that talks to Ray."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """Places for workers in a Ray cluster."""

    address: str | None  # None: a cluster of this machine, or one that is started here
    workers: int
    least: int  # with so many the job begins, if there is no room for more
    most: int  # as many are taken later, once there is room
    resources: dict[str, float]  # of each worker, by Ray's names
    strategy: str  # of the placement group
    wait: float  # seconds that there may be too little room
    python: str | None  # of the workers; None: Ray's on each node
    link_seconds: float  # of silence, after which a launcher counts as lost
