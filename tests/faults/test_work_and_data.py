"""Faults of what workers compute and read: slow or different on one rank, a helper that dies, records that are damaged.

The number of a row is that of the table. Those marked `for_the_table` are shown by other tests too, under several
launchers: `make test-faults` also brings them about in the job of the table.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.jobs import ENDLESS, RECORD_VARIABLE, Job, undisturbed
from support.process_table import command_of
from support.runs import latest_checkpoint, lines_of, result_of

from hvdtrain.audit.audit_summary import read_coverage
from hvdtrain.task.data_access import DataAccess
from hvdtrain.tasks.digits import open_split

Start = Callable[..., Job]
Record = Callable[[int, str, Job], None]

pytestmark = pytest.mark.timeout(900)
for_the_table = pytest.mark.skipif(RECORD_VARIABLE not in os.environ, reason="other tests show it; `make test-faults`")

RESTARTS = ("--max-restarts", "2", "--backoff", "0.2")
SHARE, SLICE_S = 0.25, 0.05


@contextmanager
def slowed(process: int) -> Iterator[None]:
    """It gets a quarter of its processor."""
    is_over = threading.Event()

    def work() -> None:
        while not is_over.is_set():
            os.kill(process, signal.SIGSTOP)
            time.sleep(SLICE_S * (1 - SHARE))
            os.kill(process, signal.SIGCONT)
            time.sleep(SLICE_S * SHARE)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(60)


def test_a_rank_with_a_quarter_of_a_processor_is_named_and_changes_nothing(
    start: Start, record: Record, tmp_path: Path
) -> None:
    """It is slow until it is named; the weights are those of a job in which nobody was."""
    options = ("--epochs", "5000", "--checkpoint-interval", "100")
    job = start("-np", "2", options=options)
    job.await_lines()
    with slowed(job.workers()[1]):
        job.strike(lambda: None)
        job.await_words(r"Rank 1 on \S+ is slow by ")
    job.stop()
    result = result_of(job.out)
    causes = {(found["rank"], found["cause"]) for found in result["stragglers"]}
    assert 1 in {rank for rank, _ in causes}, job.output
    assert {cause for rank, cause in causes if rank != 1} <= {"cpu contention"}, job.output  # other tests', here
    record(13, "a rank with a quarter of a processor", job)
    calm = undisturbed(tmp_path / "calm", 2, *options, "--max-steps", str(result["steps"]))
    weights = result_of(calm)["weights"]
    assert result["weights"] == weights


def test_a_collective_of_one_rank_only_is_named_with_who_is_missing(
    start: Start, record: Record, tmp_path: Path
) -> None:
    fault = {"place": "collective", "kind": "other", "rank": 1, "call": 40, "stamp": str(tmp_path / "stamp")}
    limits = ("--stall-timeout", "8", "--watchdog", "3")
    job = start("-np", "2", options=("--task", "train_torch_tasks:Mismatched", *limits), TRAIN_FAULT=json.dumps(fault))
    assert job.ended() == 1, job.output
    struck_at = float((tmp_path / "stamp").read_text())
    job.strike(lambda: None)
    job.await_words(r"Training has not gone on for \d+ s\. Rank 1 on \S+ has been in training step \d+ for \d+ s")
    job.detected_s = _last_write(job) - struck_at
    assert re.search(r"Rank 0 has waited \d+ s in hvdtrain\.gradients\.0 of step \d+, for the others\.", job.output)
    assert re.search(r"Missing ranks:\n0!?: \[allreduce\.only_here\]", job.output), job.output
    assert "rank 0 did not submit allreduce.only_here" in job.output, job.output
    stacks = [path.read_text() for path in (job.out / "stalls").rglob("rank_1.stacks.txt")]
    assert len(stacks) == 1
    assert "in measure" in stacks[0]
    record(22, "a collective that one rank alone calls", job)


def _last_write(job: Job) -> float:
    """When the explanation was written, of `time.monotonic`."""
    (explanation,) = (job.out / "stalls").rglob("explanation.txt")
    return explanation.stat().st_mtime - time.time() + time.monotonic()


def test_a_decode_process_that_is_killed_fails_its_rank_and_the_job_goes_on(start: Start, record: Record) -> None:
    options = (*ENDLESS, "--data.processes", "1")
    job = start("-np", "2", *RESTARTS, "--min-workers", "2", options=options)
    job.await_lines()
    worker = job.workers()[1]
    helpers = [
        child for child in job.children_of(worker) if b"data_sharding.loading.decode_worker" in command_of(child)
    ]
    assert len(helpers) == 1
    job.strike(lambda: os.kill(helpers[0], signal.SIGKILL))
    job.await_words(rf"Decode process {helpers[0]} ended with exit code -9 \(SIGKILL\) while it worked on a batch\.")
    job.await_that(lambda: len(job.events("resumed")) > 0, "next start")
    job.await_lines()
    job.stop()
    record(26, "`kill -9` of a process that decodes", job)


def test_a_pipeline_that_is_killed_goes_on_in_another_division(start: Start, tmp_path: Path) -> None:
    """Two pipelines of two stages lose a worker; one of three stages goes on. The loss is that of the whole model."""
    parts = (*ENDLESS[2:], "--parallel.micro-batches", "2")
    job = start("-np", "4", options=(*parts, "--parallel.stages", "2"))
    job.await_lines(2)
    os.kill(job.workers()[3], signal.SIGKILL)
    assert job.ended() == 1, job.output
    end = int(latest_checkpoint(job.out).name.removeprefix("step_")) + 25
    again = start("-np", "3", options=(*parts, "--parallel.stages", "3", "--max-steps", str(end)))
    assert again.ended() == 0, again.output
    assert read_coverage(again.out).exact
    calm = undisturbed(tmp_path / "calm", 1, "--epochs", "5000", "--max-steps", str(end))
    results = [result_of(out) for out in (again.out, calm)]
    assert [result["steps"] for result in results] == [end, end]
    assert results[0]["metrics"]["loss"] == pytest.approx(results[1]["metrics"]["loss"], rel=1e-2)


@for_the_table
def test_four_then_three_then_eight_then_one_worker_use_every_record_once(
    start: Start, record: Record, tmp_path: Path
) -> None:
    """Each start is ended in the middle of an epoch. The losses are those of one worker that was never stopped."""
    for workers, end in ((4, 40), (3, 80), (8, 105), (1, 120)):
        job = start("-np", str(workers), options=("--max-steps", str(end)))
        assert job.ended() == 0, job.output
        assert result_of(job.out)["world_size"] == workers
    coverage = read_coverage(job.out)
    assert coverage.exact
    record(27, "resumed by 3, 8 and 1 workers after 4", job)
    found, expected = _losses(job.out), _losses(undisturbed(tmp_path / "calm", 1, "--max-steps", "120"))
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
    assert found == pytest.approx(expected, rel=1e-2), "other sums of float32 differ more with each step"


def _losses(folder: Path) -> list[float]:
    """Of the validations at the ends of epochs; there are others where a job has stopped."""
    lines = lines_of(folder)
    found = [line["loss"] for line in lines if line.get("split") == "validation" and line["step"] % 30 == 0]
    assert len(found) == 4
    return found


@for_the_table
def test_a_disk_of_one_megabyte_leaves_the_newest_checkpoint_whole(
    start: Start, record: Record, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(out)], check=True, timeout=30)
    try:
        job = start("-np", "2", options=("--task-args.width", "8", "--checkpoint-interval", "5"))
        job.strike(lambda: None)
        assert job.ended() == 1, job.output
        job.await_words(r"The checkpoint of step 15 could not be written: ")
        assert (out / "checkpoints" / "latest").read_text().strip() == "step_00000010"
        record(17, "a disk of 1 MB, for the third checkpoint", job)
    finally:
        subprocess.run(["umount", "-l", str(out)], check=True, timeout=30)


@for_the_table
def test_a_loss_that_is_not_finite_ends_all_with_a_sound_checkpoint(
    start: Start, record: Record, tmp_path: Path
) -> None:
    fault = {"place": "loss", "kind": "nan", "rank": 1, "call": 40, "stamp": str(tmp_path / "stamp")}
    job = start("-np", "2", options=("--task", "train_torch_tasks:Faulty"), TRAIN_FAULT=json.dumps(fault))
    job.strike(lambda: None)
    assert job.ended() == 1, job.output
    job.await_words(r"The training loss is nan at step ")
    assert latest_checkpoint(job.out).name == "step_00000030"
    record(23, "a loss that is not finite, on one rank", job)


@for_the_table
def test_a_file_that_changes_while_it_is_used_is_named(start: Start, record: Record, tmp_path: Path) -> None:
    catalog = open_split(DataAccess(None, tmp_path / "cache"), "train")
    data = Path(shutil.copytree(Path(catalog.files[0].path).parent, tmp_path / "data"))
    job = start("-np", "2", options=(*ENDLESS, "--data.dir", str(data)))
    job.await_lines()
    file = min(data.glob("train-*"))

    def damage() -> None:
        with file.open("r+b") as content:  # in place: the workers have it open
            content.seek(1000)
            byte = content.read(1)
            content.seek(1000)
            content.write(bytes([byte[0] ^ 1]))

    job.strike(damage)
    job.await_words(r"train-0\S+ was modified after it was indexed\.")
    assert job.ended() == 1, job.output
    record(31, "a byte of a data file changed while it is used", job)
