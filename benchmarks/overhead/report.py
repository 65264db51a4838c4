"""A result as a page and as a picture."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import claims, saved
from benchmarks.comparison import Comparison
from benchmarks.overhead.arms import AGAIN, ARMS, BARE, OURS, UNMEASURED
from benchmarks.overhead.problem import BATCH, STEPS, WARM_UP
from benchmarks.pictures import dots
from benchmarks.statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PEERS = ("lightning", "accelerate")
_LABELS = {name: arm.label for name, arm in ARMS.items()}
_GOAL_MICROSECONDS = 20.0
_FASTER_THAN = ("fabric", "accelerate")
_PARTS_MICROSECONDS = 6.0  # 1 % of a step of the small MLP in benchmarks.step


def versions(peers: Path | None) -> dict[str, str]:
    """Of what the arms import. `peers`: their environment, if there is one."""
    found = saved.installed(("torch", "numpy"))
    if peers is not None:
        paths = [str(path) for path in peers.glob("lib/python*/site-packages")]
        found |= {d.name: d.version for d in metadata.distributions(path=paths) if d.name in _PEERS}
    return found


def markdown(result: dict[str, Any]) -> str:
    """The whole page."""
    compared = Comparison(result["blocks"], OURS, AGAIN)
    lines = [
        saved.head("The loop around a step, one process", result),
        "",
        claims.not_a_win_among(compared, _LABELS, own={UNMEASURED}),
        *_goals(compared),
        "",
        f"A linear model of ten parameters, batch {BATCH}, {STEPS} steps after {WARM_UP}; {len(compared.blocks)} "
        f"blocks of two runs. Times are medians of the blocks. {claims.how_to_read(compared)}",
        "",
        "| loop | µs a step | more than the bare loop | ours / theirs |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name in compared.arms:
        more = 1e6 * compared.more_than(BARE, name).median
        cells = [ARMS[name].label, f"{1e6 * compared.median(name):.0f}", f"{more:.0f}", claims.cell(compared, name)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, *_timing_alone(result, compared), *_where(result, compared)]) + "\n"


def _where(result: dict[str, Any], compared: Comparison) -> list[str]:
    """Results without peers, and those before 2026-11-26, have none."""
    if "where" not in result:
        return []
    whole = 1e6 * compared.median(OURS)
    return [
        "",
        "Where a step of hvdtrain's loop goes, by py-spy's samples of its main thread in one more run. The bare loop "
        "has the first three of these too, and slices of tensors.",
        "",
        "| part | µs a step |",
        "| --- | ---: |",
        *(f"| {part} | {whole * share:.1f} |" for part, share in result["where"].items()),
    ]


def _timing_alone(result: dict[str, Any], compared: Comparison) -> list[str]:
    """Results before 2026-11-25 have none."""
    if "timing_alone" not in result:
        return []
    seconds, looks = result["timing_alone"]["seconds_per_step"], result["timing_alone"]["share_of_looks"]
    share = seconds / compared.median(OURS) + looks
    keras = result.get("timing_alone_keras")
    return [
        "",
        f"Timing a step's parts, alone, in a loop of nothing else: {1e6 * seconds:.2f} µs a step. To look at Linux's "
        f"counters takes {looks:.3%} of the time. Together that is {share:.1%} of the step above.",
        *(
            ["", f"In TensorFlow, alone, in a loop in a graph: {1e6 * keras['seconds_per_step']:.1f} µs a step."]
            if keras
            else []
        ),
    ]


def picture(result: dict[str, Any]) -> Figure:
    """One panel."""
    panel = dots.panel_of("One process, torch", Comparison(result["blocks"], OURS, AGAIN), _LABELS)
    return dots.figure("The loop around a step; ours: hvdtrain train", result, [panel])


def _goals(compared: Comparison) -> list[str]:
    peers = [name for name in _FASTER_THAN if name in compared.others]
    return [
        claims.at_most(_GOAL_MICROSECONDS, _more_than(compared, BARE), "µs more than the bare loop"),
        *(
            claims.at_most(_PARTS_MICROSECONDS, _more_than(compared, name), "µs to time a step's parts")
            for name in (UNMEASURED,)
            if name in compared.others
        ),
        *(claims.at_most(1.0, compared.ours_over(name), f"of {ARMS[name].label}") for name in peers),
    ]


def _more_than(compared: Comparison, arm: str) -> Estimate:
    """In microseconds."""
    return Estimate(*(1e6 * seconds for seconds in compared.more_than(arm, OURS)))
