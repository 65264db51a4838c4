"""A whole drill: the job is disturbed until it has ended, then what it has left is examined."""

import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from hvdtrain.audit.audit_summary import read_coverage
from hvdtrain.chaos.faults import Fault, Job, inject
from hvdtrain.errors import RESUMABLE, HvdtrainError

_LOOK_SECONDS: Final = 0.05
_STUCK_SECONDS: Final = 600.0


@dataclass
class Drill:
    """What came of it."""

    code: int  # exit code of the launcher
    done: list[str] = field(default_factory=list)  # what was done to the job
    exact: bool = False  # whether each finished epoch used every record once
    goodput: dict[str, Any] = field(default_factory=dict)  # as in result.json; empty where the job left no result
    weights: str = ""  # hash of the final weights, "" where there are none
    updates: int = 0  # of the whole training
    measures: dict[str, float] = field(default_factory=dict)  # the last ones, by name, such as "val_accuracy"

    @property
    def survived(self) -> bool:
        """Whether the job has ended well, and every record was used once."""
        return self.code == 0 and self.exact

    def rows(self) -> list[tuple[str, str]]:
        """For a table."""
        seconds = sorted(restart["seconds"] for restart in self.goodput.get("restarts", ()))
        waits = f"{statistics.median(seconds):.1f} s in the middle, {seconds[-1]:.1f} s at most" if seconds else "none"
        return [
            ("faults", str(len(self.done))),
            ("ended", "well" if self.code == 0 else f"with exit code {self.code}"),
            ("coverage", "exact" if self.exact else "NOT exact: see hvdtrain shard verify"),
            ("restarts", str(len(seconds))),
            ("until training went on", waits),
            ("steps trained again", str(self.goodput.get("lost_steps", "?"))),
            ("goodput", f"{self.goodput.get('share', 0):.0%} of the time trained the final weights"),
        ]


def run_drill(job: Job, faults: Iterator[Fault], seconds: float, say: Callable[[str], None]) -> Drill:
    """Start the job, disturb it for `seconds`, wait for its end. Raises HvdtrainError: training did not go on for ten
    minutes."""
    drill = Drill(code=RESUMABLE)
    end = time.monotonic() + seconds

    def note(done: str) -> None:
        drill.done.append(done)
        say(done)

    try:
        while drill.code == RESUMABLE:
            job.start()
            drill.code = _disturbed(job, faults, end, note)
    finally:
        job.end()
    _examine(job, drill)
    return drill


def _disturbed(job: Job, faults: Iterator[Fault], end: float, note: Callable[[str], None]) -> int:
    """Until the launcher has ended; returns its exit code."""
    while time.monotonic() < end:
        fault = next(faults, None)
        if fault is None or not _goes_on(job) or not _stays(job, fault.after):
            break
        if time.monotonic() < end and (done := inject(job, fault)):
            note(done)
            if fault.kind == "term":
                break  # a worker that is killed while the job stops would end it without a checkpoint
    assert job.launcher is not None
    return job.launcher.wait()


def _goes_on(job: Job) -> bool:
    """Wait until training has gone on; False where the job has ended."""
    before, late = job.trained_lines, time.monotonic() + _STUCK_SECONDS
    while job.trained_lines == before:
        if not _stays(job, _LOOK_SECONDS):
            return False
        if time.monotonic() > late:
            raise HvdtrainError(
                f"Training has not gone on for {_STUCK_SECONDS:g} s.",
                "A fault was not survived.",
                f"look at the output above, and at {job.folder / 'stalls'}.",
            )
    return True


def _stays(job: Job, seconds: float) -> bool:
    """Wait; False as soon as the launcher has ended."""
    end = time.monotonic() + seconds
    while job.launcher is not None and job.launcher.poll() is None:
        left = end - time.monotonic()
        if left <= 0:
            return True
        time.sleep(min(_LOOK_SECONDS, left))
    return False


def _examine(job: Job, drill: Drill) -> None:
    result = job.folder / "result.json"
    if drill.code == 0 and result.exists():
        content = json.loads(result.read_text())
        drill.goodput, drill.weights = content["goodput"], content["weights"]["sha256"]
        drill.updates, drill.measures = content["steps"], content["metrics"]
        drill.exact = read_coverage(job.folder).exact
