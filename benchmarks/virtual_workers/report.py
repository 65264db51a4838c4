"""A result as a page and as a picture."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from benchmarks import saved
from benchmarks.pictures import dots
from benchmarks.statistics import Ratio, estimate_of
from benchmarks.step.report import versions
from benchmarks.virtual_workers.arms import AGAIN, BATCH, GOALS, MICRO, MICRO_BATCHES, PLAIN, SIDE, STEPS, SUITES
from hvdtrain.adapters.tree_exchange import sent_share
from hvdtrain.topology.virtual_workers import VirtualWorkers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["markdown", "picture", "versions"]


def markdown(result: dict[str, Any]) -> str:
    """The whole page."""
    head = saved.head("What --virtual-workers costs", result)
    intro = (
        f"ResNet-18 on random pictures of {SIDE} × {SIDE} in torch, global batch {BATCH}, {STEPS} steps in each run, "
        "under `hvdtrain launch local`; one compute thread for each worker, also without virtual workers, and "
        "`--deterministic` in all runs. What the worker that sends most sends in a step is given in bytes for each "
        "byte of the gradients, as it follows from the messages' lengths. Each figure is the median step of a run; "
        "ratios are those of blocks of two runs, with their range. **Goals**: 1.15 where each worker has one "
        "virtual worker, 1.05 for a single worker."
    )
    lines = [
        "| workers | virtual workers | ms a step | with / without | memory of a worker, MB | sent by a worker |",
        "|---|---|---|---|---|---|",
    ]
    if _has_micro_batches(result):
        intro += (
            " Small batches take a processor longer in any case: the last column compares with a training without "
            "virtual workers in micro batches of that size (`--accumulate-steps`)."
        )
        lines = [f"{lines[0]} with / in micro batches |", f"{lines[1]}---|"]
    for workers in SUITES:
        for arm in _arms(result, workers):
            lines.append(_line(result, workers, arm))
    return "\n\n".join([head, intro, "\n".join(lines)]) + "\n"


def _arms(result: dict[str, Any], workers: int) -> list[str]:
    return list(result["suites"][str(workers)][0])


def _line(result: dict[str, Any], workers: int, arm: str) -> str:
    blocks = result["suites"][str(workers)]
    micro = f"none, in {MICRO_BATCHES[workers]} micro batches"
    name = {PLAIN: "none", AGAIN: "none, once more", MICRO: micro}.get(arm, arm)
    milliseconds = 1e3 * statistics.median(block[arm][0] for block in blocks)
    memory = max(block[arm][1] for block in blocks) / 1e6
    shown = "" if arm == PLAIN else _shown(_ratios(result, workers, arm))
    virtual = workers if arm in (PLAIN, AGAIN, MICRO) else int(arm)  # a ring's bytes are those of as many as workers
    sent = sent_share(VirtualWorkers(virtual, 0, workers, BATCH), adds_in_order=True)
    line = f"| {workers} | {name} | {milliseconds:.0f} | {shown} | {memory:.0f} | {sent:.2f} |"
    if not _has_micro_batches(result):
        return line
    beside = _shown(_ratios(result, workers, arm, MICRO)) if arm == str(max(SUITES[workers])) else ""
    return f"{line} {beside} |"


def _has_micro_batches(result: dict[str, Any]) -> bool:
    """Results of earlier versions have none."""
    return MICRO in _arms(result, 1)


def _shown(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def _ratios(result: dict[str, Any], workers: int, arm: str, than: str = PLAIN) -> list[float]:
    return [block[arm][0] / block[than][0] for block in result["suites"][str(workers)]]


def picture(result: dict[str, Any]) -> Figure:
    """A panel for each number of workers."""
    panels = []
    for workers in SUITES:
        noise = Ratio(*estimate_of(_ratios(result, workers, AGAIN)))
        rows = [
            dots.Row(f"{arm} virtual workers", _ratios(result, workers, arm), noise, GOALS.get((workers, int(arm))))
            for arm in _arms(result, workers)
            if arm not in (PLAIN, AGAIN, MICRO)
        ]
        title = f"{workers} worker{'s' if workers > 1 else ''}"
        panels.append(dots.Panel(title, rows, "time with virtual workers / time without"))
    return dots.figure("A training step with --virtual-workers", result, panels)
