"""`--virtual-workers 8` on 8, 3, 5, 1 and 8 workers of one job, of which most are killed: the bits of one undisturbed.

`make test-many` runs it; in `make test` a run changes its number by stops (tests/parallel/test_virtual_workers.py).
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from support.jobs import Job, undisturbed
from support.runs import result_of, trained_lines

SIZES = (3, 5, 1, 8)
OPTIONS = (
    *("--virtual-workers", "8", "--global-batch-size", "66", "--epochs", "80", "--checkpoint-interval", "20"),
    *("--optimizer", "adamw", "--max-grad-norm", "1", "--ema-decay", "0.99", "--log-interval", "10"),
)
PATIENCE_S = 600.0

pytestmark = pytest.mark.timeout(1800)


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_a_job_whose_workers_come_and_go_ends_with_the_same_bits(framework: str, tmp_path: Path) -> None:
    slots, script = tmp_path / "slots", tmp_path / "discover"
    slots.write_text("8")
    script.write_text(f"#!/bin/sh\necho localhost:$(cat {slots})\n")
    script.chmod(0o755)
    bounds = ["-np", "8", "--min-workers", "1", "--max-workers", "8", "--max-restarts", "60"]
    options = [*OPTIONS, "--framework", framework]
    with Job(tmp_path, [*bounds, "--host-discovery-script", str(script)], options) as job:
        for size in SIZES:
            await_further_line(job)
            slots.write_text(str(size))
            for worker in job.workers()[size:]:
                os.kill(worker, signal.SIGKILL)
            job.await_words(rf"launch: {size} workers? trains? on", PATIENCE_S)
        assert job.ended(PATIENCE_S) == 0, job.output
    plain = undisturbed(tmp_path / "plain", 2, *options)
    assert result_of(job.out)["weights"] == result_of(plain)["weights"]
    assert result_of(job.out)["metrics"] == result_of(plain)["metrics"]
    assert re.search("was killed by SIGKILL", job.output)


def await_further_line(job: Job) -> None:
    before = trained_lines(job.out)
    job.await_that(lambda: trained_lines(job.out) > before, "a further line of metrics", PATIENCE_S)
