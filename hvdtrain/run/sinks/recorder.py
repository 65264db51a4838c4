"""Callbacks that write down what happened: metrics.jsonl as it goes, and what result.json needs at the end."""

from __future__ import annotations

import json
import logging
import math
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from hvdtrain.engine import events
from hvdtrain.engine.events import Event, Seconds
from hvdtrain.errors import HvdtrainError

_log = logging.getLogger("hvdtrain.run")


class MetricsFile:
    """Appends one JSON object a line. Rank 0 only. A resumed run appends; the last line of a step counts.

    Raises:
        HvdtrainError: the disk is full. The other ranks learn it when this one leaves.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def __call__(self, event: Event) -> None:
        match event:
            case events.RunStarted(step=step):
                self._write({"event": "resumed" if step else "started", "step": step})
            case events.Logged():
                self._write(_training_line(event))
            case events.Evaluated():
                self._write(_validation_line(event))
            case events.CheckpointSaved(step=step, path=path, seconds=seconds):
                self._write({"event": "checkpoint", "step": step, "path": path.name, "seconds": round(seconds, 4)})
            case events.StoppedEarly():
                self._write({"event": "stopped early", **asdict(event)})
            case events.RunEnded(step=step):
                self._write({"event": "ended", "step": step})
            case _:
                pass

    def _write(self, line: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps(_without_nan({**line, "time": round(time.time(), 3)}), allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            with suppress(OSError):  # closing tries to write the rest again, and that error would hide this one
                self._file.close()
            raise HvdtrainError(
                f"A line of metrics.jsonl could not be written: {error}.",
                "Training would continue without a record of it.",
                "free space or choose another --output-dir; --resume auto continues from the last checkpoint.",
            ) from error


class RankLog:
    """Each rank's own account in its log file."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def __call__(self, event: Event) -> None:
        match event:
            case events.StepEnded():
                pass  # the summary in Logged suffices
            case events.Logged(epoch=epoch, step=step, values=values, rank_seconds=seconds):
                _log.info("epoch %d step %d %s own seconds %s", epoch, step, dict(values), asdict(seconds[self._rank]))
            case _:
                _log.info("%s", event)


class Totals:
    """Sums over the run, for result.json and the closing table."""

    def __init__(self, ranks: int) -> None:
        self.rank_seconds = [Seconds()] * ranks
        self.validation_seconds = 0.0
        self.checkpoint_seconds = 0.0
        self.samples = 0
        self.first_loss: float | None = None

    def __call__(self, event: Event) -> None:
        match event:
            case events.Logged():
                self._add_training(event)
            case events.Evaluated(seconds=seconds):
                self.validation_seconds += seconds
            case events.CheckpointSaved(seconds=seconds):
                self.checkpoint_seconds += seconds
            case _:
                pass

    def resume_from(self, metrics: Path, step: int) -> None:
        """What earlier processes of this run wrote about its first step, where it goes on after update `step`."""
        if step == 0 or not metrics.exists():
            return
        whole_lines, _, _ = metrics.read_text().rpartition("\n")  # a killed run may have left half of one
        for text in whole_lines.splitlines():
            line = json.loads(text)
            if line.get("split") == "train" and line["step"] == 1:
                self.first_loss = line["loss"]

    @property
    def samples_per_second(self) -> float:
        """Training samples a second over all ranks, without validation and checkpoints."""
        slowest = max(s.data + s.compute + s.allreduce for s in self.rank_seconds)
        return self.samples / slowest if slowest > 0 else 0.0

    def _add_training(self, event: events.Logged) -> None:
        self.rank_seconds = [a + b for a, b in zip(self.rank_seconds, event.rank_seconds, strict=True)]
        self.samples += event.samples
        if event.step == 1:
            self.first_loss = event.values["loss"]


def _without_nan(line: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN and no infinity: they become null."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in line.items()}


def _training_line(event: events.Logged) -> dict[str, Any]:
    return {
        "split": "train",
        "epoch": event.epoch,
        "step": event.step,
        **event.values,
        "lr": event.lr,
        "samples": event.samples,
        **({"masked": event.masked} if event.masked else {}),
        **({"skipped": event.skipped} if event.skipped else {}),
        **({"grad_norm": event.grad_norm} if event.grad_norm is not None else {}),
        "samples_per_second": round(event.samples_per_second, 1),
        "seconds": [{k: round(v, 6) for k, v in asdict(s).items()} for s in event.rank_seconds],
    }


def _validation_line(event: events.Evaluated) -> dict[str, Any]:
    place = {"split": "validation", "epoch": event.epoch, "step": event.step}
    best = {"best": True} if event.is_best else {}
    return {**place, **event.values, **best, "samples": event.samples, "seconds": round(event.seconds, 6)}
