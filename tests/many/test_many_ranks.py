"""Sixty-four workers on one machine, whatever its cores: they train, go on as fewer, lose some one by one, and stop.

`make test-many` runs it, and `make test` does not: it takes minutes, in most of which processes wait for a core.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from support.jobs import ENDLESS, Job
from support.runs import ledger_of, result_of, trained_lines

from hvdtrain.history.heartbeats import read_heartbeats

RANKS, FEWER, LOST = 64, 48, 3
PATIENCE_S = 1200.0
"""What is done by one worker after the other on few cores."""
OPTIONS = (*ENDLESS, "--global-batch-size", "192", "--log-interval", "5")
FLAGS = ("--start-timeout", str(PATIENCE_S), "--grace", "300")

pytestmark = pytest.mark.timeout(3600)


def test_they_train_and_go_on_as_fewer_which_are_lost_one_by_one(tmp_path: Path) -> None:
    """Each record is used once in each epoch (`Job.stop` asserts it), and all have the same weights."""
    with Job(tmp_path, ["-np", str(RANKS), *FLAGS], OPTIONS) as job:
        await_training(job, lines=4)
        job.stop()
    stopped = result_of(job.out)["steps"]
    assert_heartbeats_by_host(job.out)
    flags = ["-np", str(FEWER), "--min-workers", str(FEWER - LOST), "--max-restarts", str(LOST), *FLAGS]
    with Job(tmp_path, flags, OPTIONS) as job:
        await_training(job, lines=1)
        for number in range(LOST):
            os.kill(job.workers()[FEWER // 2], signal.SIGKILL)
            job.await_that(lambda seen=number: world_of_all(job) > seen, "a world of all", PATIENCE_S)  # type: ignore[misc]
            await_training(job, lines=1)
        job.stop()
    result = result_of(job.out)
    assert result["steps"] > stopped
    assert result["weights"]["equal_on_all_ranks"]
    assert len(result["goodput"]["restarts"]) == LOST
    assert {line["world_size"] for line in ledger_of(job.out, event="started")} >= {RANKS, FEWER}


def world_of_all(job: Job) -> int:
    """How often a new worker has come in the place of one that was lost."""
    return job.output.count(f"{FEWER} workers train on, of which 1 joined.")


def await_training(job: Job, lines: int) -> None:
    """Until it has written further lines of metrics, and a checkpoint."""
    before, latest = trained_lines(job.out), job.out / "checkpoints" / "latest"
    job.await_that(
        lambda: latest.exists() and trained_lines(job.out) >= before + lines, "further lines of metrics", PATIENCE_S
    )


def assert_heartbeats_by_host(run: Path) -> None:
    """The first worker has written for its host; others have where they ended later, or it was late on few cores."""
    files = {path.name for path in (run / "heartbeats").glob("*.json")}
    assert "host_of_rank_0.json" in files
    assert not any(name.startswith("rank_") for name in files)
    heard = read_heartbeats(run)
    assert list(heard) == list(range(RANKS))
    assert {each.beat.end for each in heard.values()} == {"ended"}
