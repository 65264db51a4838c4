"""What the tests of faults share, and the record of what they have seen."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.jobs import ENDLESS, RECORD_VARIABLE, Job
from support.warm.interpreters import Interpreter


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Start `hvdtrain launch local FLAGS -- train OPTIONS`; by default it trains without an end."""
    with ExitStack() as jobs:

        def start_job(
            *flags: str, options: tuple[str, ...] = ENDLESS, interpreter: Interpreter = "warm workers", **env: str
        ) -> Job:
            return jobs.enter_context(Job(tmp_path, flags, options, env, interpreter))

        yield start_job


@pytest.fixture
def record() -> Callable[[int, str, Job], None]:
    """Leave what was seen of a row of the table, once all is asserted."""

    def leave(row: int, fault: str, job: Job) -> None:
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
