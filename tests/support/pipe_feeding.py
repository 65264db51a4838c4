"""Wait for a `PipeSimulator` that has no deadline of its own."""

import time

from data_sharding.pipe.simulator import PipeSimulator


def await_fed(simulator: PipeSimulator, seconds: float) -> None:
    """Return when all epochs of all channels were taken; raises what ended a channel's thread."""
    end = time.monotonic() + seconds
    while simulator.is_feeding() and time.monotonic() < end:
        time.sleep(0.005)
    simulator.raise_errors()
    assert not simulator.is_feeding(), f"some epoch had no reader within {seconds:g} s"
