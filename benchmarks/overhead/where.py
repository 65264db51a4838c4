"""Where a step of hvdtrain's loop goes, by py-spy's samples of its main thread."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from benchmarks.commands import REPOSITORY
from benchmarks.overhead.arms import ARMS, OURS, environment

PARTS = (
    ("forward pass, loss", ("Overhead.measure",)),
    ("backward pass", ("backward",)),
    ("optimizer", ("Update.step",)),
    ("taking the next batch", ("Meter.waits",)),
    ("batch to tensors, weights of its rows", ("placed", "rows", "shares")),
    ("sums of measures", ("MeasureSums.add",)),
    ("seed of the step", ("Draws.begin",)),
    ("metrics, every 50 updates", ("Engine._log",)),
    ("events", ("Engine._emit",)),
    ("account of the records", ("CoverageLedger.add", "LossGuard.add", "Meter.count")),
    ("votes to stop or save", ("StopVote.after_step",)),
    ("times of the step's parts", ("StepTimer.", "StepTimes.")),
    ("the rest", ("",)),
)
"""Names for people, and of what they begin with or are the methods that are called below the loop; the outermost one
of a stack that is named here counts."""

_LOOP = "Engine._train_steps"
_RATE = 500
_FEWEST = 500
_DEADLINE_S = 300.0


def part_of(frames: Iterable[str]) -> str:
    """Which of `PARTS` a sample belongs to: names of functions, the outermost first, below the loop."""
    for frame in frames:
        for part, names in PARTS[:-1]:
            if any(frame == name or frame.endswith(f".{name}") or _of_class(frame, name) for name in names):
                return part
    return PARTS[-1][0]


def _of_class(frame: str, name: str) -> bool:
    return name.endswith(".") and frame.startswith(name)


def shares(lines: Iterable[str]) -> dict[str, float]:
    """Shares of the loop's samples by part, from what `py-spy record --format raw` wrote.

    Raises:
        RuntimeError: there are too few.
    """
    found = dict.fromkeys((part for part, _ in PARTS), 0)
    for line in lines:
        stack, count = line.rsplit(" ", 1)
        frames = [frame.split(" (")[0] for frame in stack.split(";")]
        if _LOOP in frames:
            found[part_of(frames[frames.index(_LOOP) + 1 :])] += int(count)
    total = sum(found.values())
    if total < _FEWEST:
        raise RuntimeError(f"py-spy took {total} samples of the loop: the run was too short")
    return {part: count / total for part, count in found.items()}


def sampled(peers: Path) -> dict[str, float]:
    """Run hvdtrain's arm under the py-spy of the peers' environment."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "samples")
        spy = [str(peers / "bin" / "py-spy"), "record", "--rate", str(_RATE), "--format", "raw", "--output", str(file)]
        arm = ARMS[OURS].argv(peers, Path(scratch, "run"))
        done = subprocess.run(
            [*spy, "--", *arm],
            cwd=REPOSITORY,
            env=environment(scratch),
            capture_output=True,
            text=True,
            timeout=_DEADLINE_S,
            check=False,
        )
        if not file.exists():
            raise RuntimeError(f"py-spy wrote nothing: {json.dumps(done.stderr[-500:])}")
        return shares(file.read_text().splitlines())
