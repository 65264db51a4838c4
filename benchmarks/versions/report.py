"""What is compared, and a result as a page and as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from benchmarks import claims, saved
from benchmarks.comparison import Comparison
from benchmarks.pictures import dots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CASES: Mapping[str, tuple[str, ...]] = {
    "step of the MLP, torch": ("step", "mlp", "50", "100", "10"),
    "step of 20 × Linear(1024), torch": ("step", "linear20", "3", "5", "4"),
    "step of ResNet-18, torch": ("step", "resnet18", "3", "5", "3"),
    "step of the MLP, TensorFlow": ("step", "mlp-tensorflow", "50", "100", "10"),
    "step of 20 × Linear(1024), TensorFlow": ("step", "linear20-tensorflow", "3", "5", "4"),
    "step of ResNet-18, TensorFlow": ("step", "resnet18-tensorflow", "2", "3", "2"),
    "hvdtrain launch local to the first step, torch": ("start", "local"),
    "mpirun to the first step, torch": ("start", "mpirun"),
    "an epoch of 20,480 TFRecords of 3 KB, shuffled": ("loader", "shuffled"),
}
"""What is measured, and the words that tell `probe.py`."""
OTHER, OURS, AGAIN = "other", "this", "again"
"""AGAIN: this checkout once more in each block, what chance does."""


def markdown(result: dict[str, Any]) -> str:
    """The whole page."""
    cases = {name: Comparison(blocks, OURS, AGAIN) for name, blocks in result["cases"].items()}
    lines = [
        saved.head("One checkout beside another", result),
        "",
        claims.not_a_win(
            (
                f"{name} {claims.shown(compared.ours_over(OTHER))}"
                for name, compared in cases.items()
                if not compared.is_won(OTHER)
            ),
            "after / before",
        ),
        "",
        f"Commit {result['commits']['other']} before, {result['commits']['this']} after. A ratio below 1: what is here "
        "now takes less time. A ratio in brackets is not beyond A against A.",
        "",
        "| what | before, s | after, s | after / before | A against A | blocks |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, compared in cases.items():
        times = [f"{compared.median(arm):.4g}" for arm in (OTHER, OURS)]
        ratios = [claims.cell(compared, OTHER), claims.shown(compared.noise)]
        lines.append(f"| {' | '.join([name, *times, *ratios, str(len(compared.blocks))])} |")
    return "\n".join(lines) + "\n"


def picture(result: dict[str, Any]) -> Figure:
    """A row for each case, with its own A against A."""
    rows = []
    for name, blocks in result["cases"].items():
        ratios = [block[OURS] / block[OTHER] for block in blocks]
        rows.append(dots.Row(name, ratios, Comparison(blocks, OURS, AGAIN).noise))
    commits = f"commit {result['commits']['other']} before, {result['commits']['this']} after"
    panel = dots.Panel("", rows, "time after / before; left of 1, what is here now takes less")
    return dots.figure(f"One checkout beside another, {commits}", result, [panel])
