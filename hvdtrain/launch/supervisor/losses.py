"""The losses of an elastic job: how often it may go on after one, and what the present one is."""

from dataclasses import dataclass, field
from typing import Final

TOLD_CAUSES: Final = 8  # of the last losses, which workers are told


@dataclass(eq=False)
class Losses:
    """Of one start: at most `most` are mended, and the job went on after `restarts`, those of earlier starts too."""

    most: int
    restarts: int
    mended: int = 0  # losses of this start after which its workers went on
    cause: str = ""  # of the loss that is being mended; of one that could not be mended, to the end
    causes: list[str] = field(default_factory=list)  # of the last losses, the newest last
    # whether the job was asked to stop: then going on is for saving alone, and is not counted
    is_stopping: bool = False

    @property
    def is_affordable(self) -> bool:
        """Whether one more may be mended: a world is lost once."""
        return bool(self.cause) or self.is_stopping or self.restarts < self.most

    def begin(self, cause: str) -> str:
        """The first loss of a world; returns how it is mended, for people."""
        self.cause = cause
        if self.is_stopping:
            return "the last checkpoint is read and saved again for the stop"
        self.restarts += 1
        self.causes = [*self.causes, cause][-TOLD_CAUSES:]
        return f"restart {self.restarts} of {self.most}"

    def end(self) -> None:
        self.mended += bool(self.cause) and not self.is_stopping
        self.cause = ""
