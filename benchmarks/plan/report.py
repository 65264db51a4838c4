"""A result as a page and as a picture."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from benchmarks import saved
from benchmarks.pictures import style
from benchmarks.step.report import versions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["MODELS", "markdown", "picture", "versions"]

_GOAL: Final = 0.15


@dataclass(frozen=True)
class Model:
    """What is planned. `options` of `hvdtrain train`, with SCRATCH for a folder that has a text."""

    title: str
    options: tuple[str, ...]


MODELS: Final = {
    "resnet18": Model(
        "ResNet-18, pictures of 32 × 32, global batch 64, SGD with momentum",
        ("--task", "synthetic", "--model", "resnet18", "--task-args.side", "32", "--global-batch-size", "64"),
    ),
    "transformer": Model(
        "a transformer of 4 blocks, 256 wide, 128 bytes of context, global batch 16, AdamW",
        (
            *("--task", "text", "--data.dir", "SCRATCH", "--global-batch-size", "16"),
            *("--task-args.width", "256", "--task-args.blocks", "4"),
        ),
    ),
}


def markdown(result: dict[str, Any]) -> str:
    """The whole page."""
    head = saved.head(f"Predicted and measured steps, {result['np']} workers on one machine", result)
    intro = (
        "`hvdtrain plan --verify` measures the model's layers, each worker alone but all at the same time, and the "
        "links; predicts a step of each way to train; and then runs the ways, 5 times each, for "
        f"{result['seconds']:g} s in all. The median counts. A against A: the median of a way's odd runs "
        f"over that of its even ones. **Goal**: within {_GOAL:.0%}."
    )
    return "\n\n".join([head, intro, *(_table(name, found) for name, found in result["models"].items())]) + "\n"


def _table(name: str, found: dict[str, Any]) -> str:
    rows = [
        f"| {one['name']} | {1e3 * one['predicted']:.0f} | {1e3 * one['median']:.0f} | "
        f"{1e3 * min(one['measured']):.0f}–{1e3 * max(one['measured']):.0f} | {one['error']:+.0%} | "
        f"{_odd_over_even(one['measured']):.2f} | {_memory(found, one['name']):.0f} |"
        for one in found["verified"]
    ]
    missed = [one["name"] for one in found["verified"] if abs(one["error"]) > _GOAL]
    return "\n".join(
        [
            f"## {MODELS[name].title}",
            "",
            f"**Goal** {'reached' if not missed else 'not reached: ' + ', '.join(missed)}.",
            "",
            "| way | predicted, ms | measured, ms | of 5 runs | error | A against A | predicted memory, 10⁶ bytes |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
            *rows,
        ]
    )


def _odd_over_even(runs: list[float]) -> float:
    """What chance does: the ways take turns, so that both halves saw the same minutes."""
    return statistics.median(runs[::2]) / statistics.median(runs[1::2])


def _memory(found: dict[str, Any], name: str) -> float:
    ways = [way for ways in found["ways"].values() for way in ways if way["name"] == name]
    return float(ways[0]["memory"]) / 1e6


def picture(result: dict[str, Any]) -> Figure:
    """A panel for each model: measured steps as marks with their range, predicted ones as lines."""
    models = result["models"]
    drawn = style.empty_figure(f"Predicted and measured steps\n{style.subtitle(result)}", 8.5, 1.2 + 1.6 * len(models))
    for panel, (name, found) in zip(drawn.subplots(len(models), 1, squeeze=False)[:, 0], models.items(), strict=True):
        style.plain(panel)
        ways = found["verified"][::-1]
        for row, one in enumerate(ways):
            low, median, high = (1e3 * value for value in (min(one["measured"]), one["median"], max(one["measured"])))
            panel.plot([low, high], [row, row], color=style.THEIRS, lw=2)
            panel.plot(median, row, "o", color=style.THEIRS, ms=6, label="measured" if row == 0 else None)
            panel.plot(1e3 * one["predicted"], row, "|", color=style.OURS, ms=16, mew=2, label="predicted" * (row == 0))
        panel.set_yticks(range(len(ways)), [one["name"] for one in ways])
        panel.set_xlim(0, None)
        panel.set_title(MODELS[name].title, fontsize=style.SMALL, loc="left")
        panel.legend(frameon=False, fontsize=style.SMALL, loc="lower left")
    panel.set_xlabel("milliseconds of a step", fontsize=style.SMALL)
    return drawn
