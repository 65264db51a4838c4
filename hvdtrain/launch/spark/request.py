"""What the launcher asks of the process that talks to Spark."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """Places for workers in a Spark cluster."""

    master: str | None  # such as spark://node1:7077; None: what Spark's own configuration says
    workers: int  # tasks of the barrier stage
    settings: dict[str, str]  # Spark's, by its names
    python: str  # interpreter of the tasks
    wait: float  # seconds that there may be too little room
    link_seconds: float  # of silence, after which a launcher counts as lost
