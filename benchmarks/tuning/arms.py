"""The commands that are compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from benchmarks.step.arms import SUITES, Arm
from benchmarks.step.workload import MODELS

MODEL_NAMES: Final = ("resnet18", "mlp")
OURS, AGAIN, DEFAULTS, AUTOTUNE, PLAIN_AUTOTUNE = "tuned", "tuned_again", "defaults", "autotune", "plain_autotune"
"""AGAIN: OURS once more in each block, which may choose something else: what chance does to both."""

_SAMPLED_STEPS: Final = 200
"""Warm-up steps of all arms: after 150, Horovod's autotuning has chosen (the last line of HOROVOD_AUTOTUNE_LOG)."""

_DEFAULT = SUITES["mlp"].arms["hvdtrain"]
_AUTOTUNE = (
    *("-x", "HOROVOD_AUTOTUNE=1"),
    # A look at a setting takes five times so many steps. By default these are 10, 3 and 20: thousands of steps.
    *("-x", "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE=1"),
    *("-x", "HOROVOD_AUTOTUNE_WARMUP_SAMPLES=1"),
    *("-x", "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES=6"),
)


def _with(label: str, *options: str, launcher: tuple[str, ...] = ()) -> Arm:
    return replace(
        _DEFAULT,
        label=label,
        launcher=(*_DEFAULT.launcher, *launcher),
        command=(*_DEFAULT.command, *options),
    )


ARMS: Final = {
    OURS: _with("--tune auto", "--tune", "auto"),
    DEFAULTS: _with("--tune never"),
    AUTOTUNE: _with("--tune never, HOROVOD_AUTOTUNE=1", launcher=_AUTOTUNE),
    PLAIN_AUTOTUNE: _with(
        "--gradient-sync horovod, HOROVOD_AUTOTUNE=1", "--gradient-sync", "horovod", launcher=_AUTOTUNE
    ),
}


def counts_of(model: str) -> tuple[int, int, int]:
    """Steps to warm up, steps of an iteration, iterations."""
    _, steps, iterations = MODELS[model].counts
    return _SAMPLED_STEPS, steps, iterations
