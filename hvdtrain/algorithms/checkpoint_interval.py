"""How much time should pass between two checkpoints."""

import math

FIRST_GUESS_SECONDS = 1.0
"""What a checkpoint costs, before one was measured."""


def young_daly(cost: float, mtbf: float) -> float:
    """Seconds between checkpoints that lose the least time, to saving and to repeating what a failure undid.

    sqrt(2 · cost · mtbf) - cost: Young 1974 (doi:10.1145/361147.361115) as Daly 2006 (doi:10.1016/j.future.2004.11.016)
    corrected it, for costs below mtbf / 2; above, Daly's answer is mtbf.

    Args: `cost`: seconds for which training waits for a checkpoint; `mtbf`: mean seconds between failures of the job.
    """
    return math.sqrt(2 * cost * mtbf) - cost if cost < mtbf / 2 else mtbf
