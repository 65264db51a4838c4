"""When a run is asked to stop, and what it says at its end."""

from __future__ import annotations

import time
from pathlib import Path

from hvdtrain.config.duration import seconds_of
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.engine.stop_vote import StopRequest


def asked_or_late(asked: StopRequest, config: TrainConfig, begin: float) -> StopRequest:
    """`asked`, and `--max-time` since `begin` (of `time.perf_counter`), where it is set."""
    if config.max_time is None:
        return asked
    deadline = begin + seconds_of(config.max_time, "--max-time")
    return lambda: asked() or (f"--max-time {config.max_time}" if time.perf_counter() >= deadline else None)


def how_to_continue(config: TrainConfig, folder: Path) -> str:
    """The end of a sentence: what to start, where `folder` is the run's."""
    changed = [] if config.output_dir else [f"--output-dir {folder}"]
    if config.resume != "auto":  # another value would be refused, as the folder now holds a run
        changed.append("--resume auto")
    return " ".join(["start the same command again", *(["with"] if changed else []), *changed])
