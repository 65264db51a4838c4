"""Runs at a glance: state, result and speed of each run below some folders."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hvdtrain.errors import UsageError
from hvdtrain.history.goodput import is_start
from hvdtrain.history.metrics_end import MetricsEnd, begun, measures, read_metrics_end
from hvdtrain.history.reading import UNREADABLE, JsonLines, mapping, number, text, whole
from hvdtrain.history.run_facts import is_run, read_facts
from hvdtrain.history.run_state import RunState, is_locked, state_of, telling_heartbeats, tells_end
from hvdtrain.set_names import readable

_DEPTH: Final = 3  # folders below the one that was named, e.g. sweep/lr-0.1/RUN


@dataclass(frozen=True)
class Measure:
    """A measured value, e.g. accuracy 0.98; `best`: the best so far where it is known and another one."""

    name: str
    value: float
    best: float | None = None


@dataclass(frozen=True)
class Overview:
    """One run at a glance; None and "" stand for what its folder does not say."""

    path: Path
    name: str  # of its folder
    state: RunState
    framework: str  # "torch" or "tensorflow"
    task: str  # its name, or MODULE:CLASS
    workers: int | None  # how many
    steps: int | None  # updates done
    total_steps: int | None  # of the whole training
    measure: Measure | None  # the last validation, or the last training values where there was none
    samples_per_second: float | None  # over all workers
    seconds: float | None  # how long it has run, through all its restarts
    begun: float | None  # when it began, by `time.time()`
    problems: tuple[str, ...]  # as in `RunFacts`


def may_look_into(folder: Path) -> bool:
    """Whether this user has the rights to list it."""
    return os.access(folder, os.R_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)


def require_folders(folders: Sequence[Path]) -> None:
    """Raise `UsageError` where one of them is not a folder."""
    for folder in folders:
        if not os.path.isdir(folder):
            raise UsageError(
                f"{folder} is a file." if os.path.exists(folder) else f"There is no folder {folder}.",
                "No runs can be listed there.",
                "name run folders, or folders that contain some: hvdtrain ls DIR.",
            )
        if not may_look_into(folder):
            raise UsageError(
                f"{folder} cannot be read: Permission denied.", "No runs can be listed there.", "let this user read it."
            )


def overviews(folders: Sequence[Path]) -> list[Overview]:
    """All runs in these folders or below them, the newest first."""
    runs = {run.resolve(): run for folder in folders for run in _runs_below(folder, _DEPTH)}
    views = []
    for run in runs.values():
        with suppress(UsageError):  # it was removed meanwhile
            views.append(overview(run))
    return sorted(views, key=lambda view: (-(view.begun or 0.0), view.name))


def overview(run: Path) -> Overview:
    """The run in the folder `run`. Raises `UsageError` as `read_facts` does."""
    facts = read_facts(run)
    metrics = run / "metrics.jsonl"
    end, locked = read_metrics_end(metrics), is_locked(run)
    heartbeats = telling_heartbeats(run, end, locked)
    state = state_of(run, facts.result, end, heartbeats, locked)
    result = facts.result if tells_end(state) else None
    beat = heartbeats[0].beat if 0 in heartbeats else None
    begin = begun(metrics) or _written(run)
    heard, chosen = next((each.beat.framework for each in heartbeats.values()), ""), text(facts.config, "framework")
    reached = [step for step in (end.step, beat.step if beat else None) if step is not None]
    return Overview(
        path=run,
        name=run.resolve().name,
        state=state,
        framework=text(result, "framework") or heard or ("" if chosen == "auto" else chosen),
        task=text(result, "task") or text(facts.config, "task"),
        workers=whole(result, "world_size") or whole(mapping(facts.environment, "topology"), "size"),
        steps=whole(result, "steps") if result else max(reached, default=None),
        total_steps=beat.total_steps if beat else None,
        measure=_measure(result, end, text(facts.config, "best_metric")),
        samples_per_second=number(result or end.train, "samples_per_second"),
        seconds=_seconds(facts.result, state, begin, end, metrics),
        begun=begin,
        problems=(*facts.problems, *([f"{end.problem}."] if end.problem and state.word != "unknown" else [])),
    )


def _runs_below(folder: Path, depth: int) -> Iterator[Path]:
    """Runs contain no other runs. Links to folders are not followed, except for the one that was named."""
    with suppress(OSError):
        if is_run(folder):
            yield folder
        elif depth:
            inside = [e.path for e in os.scandir(folder) if e.name[0] != "." and e.is_dir(follow_symlinks=False)]
            for path in sorted(inside):
                yield from _runs_below(Path(path), depth - 1)


def _measure(result: Mapping[str, Any] | None, end: MetricsEnd, asked: str) -> Measure | None:
    """Of the result's metrics, or of the last line of validation or training, which its name says then."""
    best = mapping(result, "best")
    values = mapping(result, "metrics") or measures(end.validation) or measures(end.train)
    is_validated = bool(best) or end.validation is not None
    chosen = text(best, "metric") or asked
    name = readable(values, chosen) if values else ""
    value = number(values, name)
    if value is None:
        return None
    record = number(best, "value") if name == chosen else None
    return Measure(name if is_validated else f"training {name}", value, None if record == value else record)


def _seconds(
    result: Mapping[str, Any] | None, state: RunState, begin: float | None, end: MetricsEnd, metrics: Path
) -> float | None:
    """Of a run that was continued after the end that its result tells of, without the time between."""
    known = number(mapping(mapping(result, "goodput"), "seconds"), "total") or number(
        mapping(result, "seconds"), "total"
    )
    if known is not None and tells_end(state):
        return known
    last = time.time() if state.word == "running" else end.time
    continued = _continued_at(metrics) if known is not None else None
    if known is not None and continued is not None and last is not None:
        return known + max(0.0, last - continued)
    return None if begin is None or last is None else max(0.0, last - begin)


def _continued_at(metrics: Path) -> float | None:
    """When the first start after the last end began; None where there is none, or no end was written."""
    begun, has_ended = None, False
    with suppress(*UNREADABLE):
        for line in JsonLines(metrics, (b'"started"', b'"resumed"', b'"ended"')):
            if line.get("event") == "ended":
                begun, has_ended = None, True
            elif is_start(line) and begun is None:
                begun = number(line, "begun") or number(line, "time")
    return begun if has_ended else None


def _written(run: Path) -> float | None:
    """When its config was written, which is as it begins; or else the folder itself."""
    for path in (run / "config.yaml", run):
        with suppress(OSError):
            return path.stat().st_mtime
    return None
