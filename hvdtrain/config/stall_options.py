"""The options that say when a training that does not go on is explained and ended."""

from dataclasses import dataclass
from typing import Literal

from hvdtrain.config.option import AT_LEAST_ONE, Group, Options, option
from hvdtrain.errors import UsageError
from hvdtrain.units import seconds_of


@dataclass(frozen=True)
class StallOptions(Options):
    """What happens if some workers wait for others, or for data, too long."""

    stall_timeout: float = option(300.0, Group.GRADIENTS, must=AT_LEAST_ONE).help(
        "seconds after which the job ends if some workers have not joined a collective."
    )
    watchdog: str = option("auto", Group.GRADIENTS, metavar="{auto,never,TIME}").help("""time without progress after
        which the run reports which worker waits for what, with the stacks of all workers; auto: 20 times as long as the
        same work took before, but at least 30 s; or never.""")
    watchdog_action: Literal["explain", "end"] = option("explain", Group.GRADIENTS).help("""what happens then: explain
        (only the report; stall_timeout and data.timeout still end the job), or end (the job ends at once, unless a
        worker is computing; a launcher with --max-restarts starts it again).""")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.watchdog not in ("auto", "never") and seconds_of(self.watchdog, "--watchdog") >= self.stall_timeout:
            raise UsageError(
                f"--watchdog is {self.watchdog}, and --stall-timeout {self.stall_timeout:g} s.",
                "The job would end before anything is explained.",
                "give --watchdog a shorter time, or --stall-timeout a longer one.",
            )
