"""What a framework's profiler has recorded, in one form for both."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class ProfiledEvent(NamedTuple):
    """Something that took time."""

    lane: str  # where it happened: a thread of the host, or a stream of a device
    name: str
    begin: float  # nanoseconds since `Profile.base`
    duration: float  # nanoseconds


class Profile(NamedTuple):
    """Attributes: `base`: nanoseconds of Unix time; `events`: in any order."""

    base: int
    events: Sequence[ProfiledEvent]


class Profiler(Protocol):
    """Records what a framework does in this process. Used once."""

    def start(self) -> None:
        """Begin to record."""

    def stop(self) -> Profile:
        """End, and return what was recorded. It may take seconds."""
