"""What is compared: the suites of training steps, and some with Adam, whose state can be divided over the workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from benchmarks.step import arms
from benchmarks.step.arms import OURS, Arm, Suite

_ADAM: Final = ("--optimizer", "adamw")


def _divided(suite: Suite) -> Suite:
    base = suite.arms[OURS]

    def with_shards(what: str) -> Arm:
        return replace(base, runs=f"hvdtrain --shard {what}", command=(*base.command, *_ADAM, "--shard", what))

    shards = {f"{OURS}_{what}": with_shards(what) for what in ("optimizer", "gradients")}
    return replace(suite, note=", AdamW", arms={OURS: replace(base, command=(*base.command, *_ADAM)), **shards})


SUITES: Mapping[str, Suite] = {
    **arms.SUITES,
    "linear20-adamw": _divided(arms.SUITES["linear20"]),
    "linear20-adamw-tensorflow": _divided(arms.SUITES["linear20-tensorflow"]),
}
