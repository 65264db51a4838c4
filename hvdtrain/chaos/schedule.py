"""Which faults come when: the same for the same seed."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

Kind = Literal["kill", "stop", "slow", "term", "corrupt", "full"]
KINDS: Final[tuple[str, ...]] = get_args(Kind)

_SHORTEST_SECONDS: Final = 0.2
_PAUSES: Final = (0.5, 3.0)  # seconds of what lasts


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        kind: kill (SIGKILL of a worker, or of a process that it has started), stop (SIGSTOP for a while), slow (a
            quarter of the CPU for a while), term (SIGTERM to the launcher, as a scheduler sends it), corrupt (one byte
            of the newest checkpoint is changed, and a worker is killed), full (the process of rank 0 can write no file
            for a while, as on a full disk).
        after: seconds for which training goes on before.
        rank: of the worker.
        seconds: how long it lasts, for stop, slow and full.
        choice: from 0 to 1: which of the worker's processes, or which byte.
    """

    kind: Kind
    after: float
    rank: int
    seconds: float
    choice: float


def schedule(seed: int, kinds: Sequence[Kind], size: int, every: float) -> Iterator[Fault]:
    """Faults without end.

    Args:
        kinds: each of them as often as the others.
        size: how many workers there are.
        every: mean seconds between faults, distributed exponentially.
    """
    draw = random.Random(seed)
    while True:
        after = max(_SHORTEST_SECONDS, draw.expovariate(1 / every))
        yield Fault(draw.choice(kinds), after, draw.randrange(size), draw.uniform(*_PAUSES), draw.random())
