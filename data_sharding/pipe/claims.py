"""Before anything is opened: does every worker have a FIFO of its own?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from data_sharding.errors import PlanError


@dataclass(frozen=True)
class Claim:
    """What one rank is about to open.

    Attributes:
        rank: of the job.
        host: name of its node, for the message.
        local_rank: among the workers of its node.
        channel: name of the channel.
        machine: what tells kernels apart, such as the boot id: names of hosts may be equal.
        device, inode: of the FIFO. On one machine two paths with the same ones are one FIFO.
    """

    rank: int
    host: str
    local_rank: int
    channel: str
    machine: str
    device: int
    inode: int

    def __str__(self) -> str:
        return f"rank {self.rank} (local rank {self.local_rank} on {self.host}, channel {self.channel})"


def check_openers(claims: Sequence[Claim]) -> None:
    """Refuse what would give one FIFO two readers. All ranks pass all ranks' claims, so that all raise or none.

    Raises:
        PlanError: two claims are for one FIFO.
    """
    seen: dict[tuple[str, int, int], Claim] = {}
    for claim in claims:
        first = seen.setdefault((claim.machine, claim.device, claim.inode), claim)
        if first is not claim:
            raise PlanError(
                f"One FIFO would be opened by {first} and by {claim}.",
                "Each would get some of its bytes, and torn records, or wait for ever.",
                "give each worker of a node a channel of its own, as `hvdtrain shard pipe-plan` does.",
            )
