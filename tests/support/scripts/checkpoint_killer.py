"""Saves a checkpoint again and again in child processes, each killed at a later moment, and says what was left.

    python checkpoint_killer.py FOLDER SCENARIO

A moment is just before an operation on a file below FOLDER: open, write, mkdir, rename, remove, fsync. Prints a JSON
list with one entry a moment: "before" (operation and path), "loads" (step or null), "content", "latest" and more.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from hvdtrain.algorithms.early_stopping import Best, ValidationHistory
from hvdtrain.checkpoints.format import Checkpoint, Position, publish, write_position
from hvdtrain.checkpoints.parts import write_part
from hvdtrain.checkpoints.store import CheckpointStore

_EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate"}
_DEADLINE_SECONDS = 30


def checkpoint(step: int, value: float, best: int | None = None) -> Checkpoint:
    state = {"model/w": np.full(1000, value), "optimizer/m": np.full(1000, -value)}
    history = (
        ValidationHistory(Best("loss", 0.5, best, 0), 0.5, 0, step, "min loss")
        if best is not None
        else ValidationHistory()
    )
    return Checkpoint(state, Position(step, 8 * step, history), {"seed": 1})


SCENARIOS: dict[str, tuple[list[tuple[Any, ...]], int, tuple[Any, ...]]] = {
    # name: (saved before, as (step, value, perhaps the best step); keep; what is saved when the process is killed)
    "the first": ([], 2, (1, 1.0)),
    "a second": ([(1, 1.0)], 2, (2, 2.0)),
    "keeping one": ([(1, 1.0)], 1, (2, 2.0)),
    "removing the oldest": ([(1, 1.0), (2, 2.0)], 2, (3, 3.0)),
    "a new best": ([(1, 1.0, 1), (2, 2.0, 1)], 1, (3, 3.0, 3)),
    "validated late": ([(1, 1.0, 1), (2, 2.0, 1)], 1, (2, 2.0, 2)),
    "in parts": ([(1, 1.0)], 2, (2, 2.0)),
    "after going back": ([(1, 1.0), (2, 2.0), (3, 3.0)], 3, (2, 2.5)),
}
"""In "validated late" only the manifest of step 2 is written again.
In the last one the run was resumed from step 1, so that the old step 2 is replaced and step 3 is no more."""


def skip_fsync(descriptor: int) -> None:
    """Only a power cut could tell the difference, and it takes most of the time."""


def saving(store: CheckpointStore, scenario: str) -> Callable[[Checkpoint], Path]:
    """What is done with the new checkpoint."""
    if scenario == "in parts":
        return lambda new: save_in_parts(store, new)
    if scenario == "validated late":
        return lambda new: store.put(new.position, None, lambda path: write_position(path, new.position))
    return store.save


def save_in_parts(store: CheckpointStore, new: Checkpoint) -> Path:
    """What two ranks do, one after the other."""
    staging = store.staging(new.position.step)
    hashes = {name: sha for index in range(2) for name, sha in write_part(staging, new.state, index, 2).items()}
    return store.put(new.position, None, lambda path: publish(staging, path, new.position, new.about, hashes))


def save_until_killed(save: Callable[[Checkpoint], Path], new: Checkpoint, folder: str, moment: int) -> None:
    """In a child: save `new`, and be killed just before operation number `moment`, which is first reported."""
    count = 0

    def count_down(operation: str, path: str) -> None:
        nonlocal count
        if count == moment:
            os.write(report, json.dumps([operation, os.path.relpath(path, folder)]).encode())
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1

    def on_event(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _EVENTS and isinstance(arguments[0], str | bytes | os.PathLike):
            path = os.fsdecode(arguments[0])
            if path.startswith(folder):
                count_down(event, path)

    def fsync(descriptor: int) -> None:
        count_down("os.fsync", os.readlink(f"/proc/self/fd/{descriptor}"))

    def on_call(_frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and called.__name__ in ("write", "flush"):
            path = getattr(called.__self__, "name", None)
            if isinstance(path, str | os.PathLike) and os.fspath(path).startswith(folder):
                count_down(called.__name__, os.fspath(path))

    report = int(os.environ["REPORT"])
    os.fsync = fsync  # type: ignore[assignment]
    sys.addaudithook(on_event)
    sys.setprofile(on_call)
    signal.alarm(_DEADLINE_SECONDS)
    save(new)


def killed_at(moment: int, save: Callable[[Checkpoint], Path], new: Checkpoint, folder: Path) -> list[str] | None:
    """Which operation the child was killed before; None where it had none left and ended well."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.environ["REPORT"] = str(writing)
            save_until_killed(save, new, str(folder), moment)
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with open(reading, "rb") as pipe:
        report = pipe.read()
    _, status = os.waitpid(child, 0)
    if report:
        return list(json.loads(report))
    if status != 0:
        raise SystemExit(f"saving failed with status {status}")
    return None


def main(root: Path, scenario: str) -> None:
    before, keep, saved = SCENARIOS[scenario]
    step, value = saved[:2]
    results = []
    prepared = root / "before"
    prepared.mkdir()
    for one in before:
        CheckpointStore(prepared, keep).save(checkpoint(*one))
    for moment in range(1000):
        folder = root / str(moment)
        if before:
            shutil.copytree(prepared, folder)
        store = CheckpointStore(folder, keep)
        operation = killed_at(moment, saving(store, scenario), checkpoint(*saved), folder)
        loaded = store.newest()
        latest, best = folder / "latest", folder / "best"
        results.append(
            {
                "before": operation,
                "loads": loaded.position.step if loaded else None,
                "content": float(loaded.state["model/w"][0]) if loaded else None,
                "whole": loaded is None or all(len(set(array.tolist())) == 1 for array in loaded.state.values()),
                "latest": latest.read_text().strip() if latest.exists() else None,
                "latest_is_there": not latest.exists() or (folder / (latest.read_text().strip() or "nothing")).is_dir(),
                "known_best": loaded.position.history.best.step if loaded and loaded.position.history.best else None,
                "best": best.read_text().strip() if best.exists() else None,
                "kept": [path.name for path in store.paths()],
                **after_another_start(store, loaded, checkpoint(step + 1, value + 1), folder),
            }
        )
        shutil.rmtree(folder)
        if operation is None:
            break
    print(json.dumps(results))


def after_another_start(
    store: CheckpointStore, loaded: Checkpoint | None, new: Checkpoint, folder: Path
) -> dict[str, Any]:
    """What is there after the next start, and a save."""
    store.resume_from(loaded.position if loaded else Position())
    store.save(new)
    newest = store.newest()
    return {
        "then_loads": newest.position.step if newest else None,
        "then_latest": (folder / "latest").read_text().strip(),
        "then_left": sorted(path.name for path in folder.iterdir() if path.name.startswith(".")),
    }


if __name__ == "__main__":
    os.fsync = skip_fsync  # type: ignore[assignment]
    main(Path(sys.argv[1]).resolve(), sys.argv[2])
