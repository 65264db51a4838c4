"""What the tests of faults share, and the record of what they have seen."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.disturbed_job import INTERVAL, RECORD_VARIABLE, DisturbedJob

ENDLESS = ("--epochs", "5000", "--checkpoint-interval", str(INTERVAL))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., DisturbedJob]]:
    """Start `hvdtrain launch local FLAGS -- train OPTIONS`; by default it trains without an end."""
    jobs: list[DisturbedJob] = []

    def start_job(*flags: str, options: tuple[str, ...] = ENDLESS, **env: str) -> DisturbedJob:
        jobs.append(DisturbedJob(tmp_path, list(flags), list(options), env))
        return jobs[-1]

    yield start_job
    for job in jobs:
        job.close()


@pytest.fixture
def record() -> Callable[[int, str, DisturbedJob], None]:
    """Leave what was seen of a row of the table, once all is asserted."""

    def leave(row: int, fault: str, job: DisturbedJob) -> None:
        folder = os.environ.get(RECORD_VARIABLE)
        if folder is None:
            return
        lost = job.lost_steps()
        seen = {
            "row": row,
            "fault": fault,
            "detected_s": round(job.detected_s, 1),
            "exit_code": job.process.returncode,
            "message": job.message,
            "lost_steps": lost,
        }
        (Path(folder) / f"{row:02}.json").write_text(json.dumps(seen))

    return leave
