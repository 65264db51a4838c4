"""The ways to save that are compared, and the sizes of the state."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

OURS, AGAIN = "hvdtrain_async", "hvdtrain_async_again"
"""AGAIN: the same as OURS, measured a second time in each block: what chance does."""


@dataclass(frozen=True)
class Arm:
    """One way to save.

    Args:
        label: for people.
        is_peer: whether it needs the peers' environment.
    """

    label: str
    is_peer: bool = False

    def python(self, peers: Path | None) -> str:
        """The interpreter that runs it."""
        return str(peers / "bin" / "python") if self.is_peer else sys.executable


ARMS: Final[Mapping[str, Arm]] = {
    OURS: Arm("hvdtrain, --checkpoint-mode async"),
    "hvdtrain_sync": Arm("hvdtrain, --checkpoint-mode sync"),
    "torch_save": Arm("torch.save"),
    "dcp_async": Arm("torch.distributed.checkpoint.async_save"),
    "lightning_async": Arm("Lightning's AsyncCheckpointIO", is_peer=True),
    "composer": Arm("Composer's save_checkpoint", is_peer=True),
}

OF_RESNET50: Final = 205
MEGABYTES: Final = (10, 100, OF_RESNET50, 1000)
"""Of the state: weights and SGD's momentum."""
