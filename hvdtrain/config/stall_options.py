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
    watchdog: str = option("auto", Group.GRADIENTS, metavar="{auto,never,TIME}").help("""time after which a training
        that does not go on is explained: which worker waits for what, and the stacks of all; or auto: 20 times what the
        same has taken before, 30 s at least; or never.""")
    watchdog_action: Literal["explain", "end"] = option("explain", Group.GRADIENTS).help("""what follows: explain
        (nothing; stall_timeout and data.timeout end the job), or end (at once, unless a worker is computing; a launcher
        with --max-restarts then starts it again).""")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.watchdog not in ("auto", "never") and seconds_of(self.watchdog, "--watchdog") >= self.stall_timeout:
            raise UsageError(
                f"--watchdog is {self.watchdog}, and --stall-timeout {self.stall_timeout:g} s.",
                "The job would end before anything is explained.",
                "give --watchdog a shorter time, or --stall-timeout a longer one.",
            )
