"""metrics.jsonl: what was measured, one JSON object per line, while the run goes on."""

import json
import logging
import os
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict
from typing import Any, TextIO

from hvdtrain import activity
from hvdtrain.engine import events
from hvdtrain.engine.events import Event
from hvdtrain.errors import HvdtrainError
from hvdtrain.files import finite, open_lines
from hvdtrain.measured import Metric, known_metrics
from hvdtrain.rank_summary import RankSummary
from hvdtrain.run.sinks.sink import SinkContext
from hvdtrain.topology.launcher_variables import RESTART_CAUSE_VARIABLE, RESTART_CAUSES_VARIABLE, RESTART_VARIABLE

_log = logging.getLogger("hvdtrain.run")


def open_sink(context: SinkContext, stack: ExitStack) -> "MetricsFile | None":
    if not context.topology.is_root:
        return None

    def opened() -> TextIO:
        return stack.enter_context(open_lines(context.folder.metrics))

    return MetricsFile(opened(), context.begun, opened)


class MetricsFile:
    """Appends one JSON object per line. Rank 0 only. A resumed run appends; the last line of a step counts. Raises
    HvdtrainError: the disk is full. The other ranks learn it when this one leaves. `reopen`: makes the file again
    where somebody has removed it."""

    def __init__(self, file: TextIO, begun: float, reopen: Callable[[], TextIO] | None = None) -> None:
        self._file, self._begun, self._reopen = file, begun, reopen

    def __call__(self, event: Event) -> None:
        match event:
            case events.RunStarted(step=step):
                self._write({"event": "resumed" if step else "started", "step": step, **self._about_start()})
            case events.Logged():
                self._write(_training_line(event))
            case events.Evaluated():
                self._write(_validation_line(event))
            case events.CheckpointDurable() | events.StragglerFound():
                self._write(_event_line(event))
            case events.CheckpointFailed(step=step, reason=reason):
                self._write({"event": "checkpoint failed", "step": step, "reason": reason})
            case events.CheckpointSkipped(step=step):
                self._write({"event": "checkpoint skipped", "step": step})
            case events.StoppedEarly():
                self._write({"event": "stopped early", **asdict(event)})
            case events.RunEnded(step=step, finished=finished, stopped_by=reason):
                cause = {} if finished else {"stopped_by": reason or "--max-steps"}
                self._write({"event": "ended", "step": step, "finished": finished, **cause})
            case events.RunFailed(step=step, error=error) if not self._file.closed:
                self._write({"event": "failed", "step": step, "error": f"{type(error).__name__}: {error}"})

    def _about_start(self) -> dict[str, Any]:
        causes = os.environ.get(RESTART_CAUSES_VARIABLE, "").splitlines()
        restarts = os.environ.get(RESTART_VARIABLE, "")
        reached, activity.now.reached = activity.now.reached, 0
        facts = {
            "cause": os.environ.get(RESTART_CAUSE_VARIABLE),
            "restarts": int(restarts) if restarts.isdecimal() else 0,
            "causes": causes if len(causes) > 1 else None,
            "reached": reached,
        }
        return {"begun": round(self._begun, 3)} | {name: fact for name, fact in facts.items() if fact}

    def _is_gone(self) -> bool:
        """Whether it was removed. Some file systems count no links."""
        return os.fstat(self._file.fileno()).st_nlink == 0 and not os.path.exists(self._file.name)

    def _write(self, line: dict[str, Any]) -> None:
        try:
            if self._reopen is not None and self._is_gone():
                _log.warning("metrics.jsonl was removed while the run wrote it; what follows is in a new one")
                self._file.close()
                self._file = self._reopen()
            self._file.write(json.dumps(finite({**line, "time": round(time.time(), 3)}), allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            with suppress(OSError):  # closing tries to write the rest again, and that error would hide this one
                self._file.close()
            raise HvdtrainError(
                f"A line of metrics.jsonl could not be written: {error}.",
                "Training would continue without a record of it.",
                "free space or choose another --output-dir; --resume auto continues from the last checkpoint.",
            ) from error


def _training_line(event: events.Logged) -> dict[str, Any]:
    return {
        "split": "train",
        "epoch": event.epoch,
        "step": event.step,
        **event.values,
        "samples": event.samples,
        **{metric.name: _shown(metric, value) for metric, value in known_metrics(event)},
        "seconds": _seconds(event),
    }


def _seconds(event: events.Logged) -> Any:
    """A list of all ranks, or their summary."""
    if event.summary is not None:
        return event.summary.as_json(6)
    return [{k: round(v, 6) for k, v in s.known().items()} for s in event.rank_seconds]


def _shown(metric: Metric, value: Any) -> Any:
    if isinstance(value, RankSummary):
        return value.as_json(None if metric.kind == "bytes" else 6, names=metric.reduced == "max")
    if metric.of == "rank":
        return {"max": max(value), "ranks": list(value)}
    return metric.rounded(value)


def _event_line(event: events.CheckpointDurable | events.StragglerFound) -> dict[str, Any]:
    if isinstance(event, events.StragglerFound):
        return {"event": "straggler", "step": event.step, **asdict(event.straggler)}
    times = {"seconds": round(event.seconds, 4), "write_seconds": round(event.write_seconds, 4)}
    return {"event": "checkpoint", "step": event.step, "path": event.path.name, "bytes": event.size, **times}


def _validation_line(event: events.Evaluated) -> dict[str, Any]:
    place = {"split": "validation", "epoch": event.epoch, "step": event.step}
    best = {"best": True} if event.is_best else {}
    ranks: Any = [round(seconds, 6) for seconds in event.rank_seconds]
    if event.summary is not None:
        ranks = event.summary.as_json(6)
    times = {"seconds": round(event.seconds, 6), "rank_seconds": ranks}
    sets = {"sets": dict(event.sets)} if event.sets else {}
    return {**place, **event.values, **best, "samples": event.samples, **sets, **times}
