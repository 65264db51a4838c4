"""Faults of processes, signals and files: each ends as docs/faults.md says, and no record is lost or used twice.

The number of a row is that of the table. Faults of hosts and networks are in tests/cluster.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.jobs import ENDLESS, INTERVAL, Job
from support.process_table import command_of, is_stopped

Start = Callable[..., Job]
Record = Callable[[int, str, Job], None]

pytestmark = pytest.mark.timeout(900)

RESTARTS = ("--max-restarts", "2", "--backoff", "0.2")
STOPPED_FOR_S = "4"


def kill(process: int, number: int = signal.SIGKILL) -> Callable[[], None]:
    return lambda: os.kill(process, number)


@pytest.mark.parametrize(
    ("row", "rank", "flags"),
    [(1, 1, ()), (2, 0, ()), (2, 0, ("--min-workers", "1"))],
    ids=["worker", "rank 0", "rank 0, elastic"],
)
def test_a_killed_worker_costs_no_more_than_the_last_checkpoint(
    row: int, rank: int, flags: tuple[str, ...], start: Start, record: Record
) -> None:
    job = start("-np", "2", *RESTARTS, *flags)
    job.await_lines()
    job.strike(kill(job.workers()[rank]))
    job.await_words(rf"rank {rank} of 2 was killed by SIGKILL\.")
    job.await_lines()
    job.stop()
    (restart,) = job.events("resumed")[:1]
    assert restart["step"] > 0
    record(row, "`kill -9` of rank 0" if rank == 0 else "`kill -9` of one worker", job)


def test_a_killed_worker_without_restarts_ends_all(start: Start, record: Record) -> None:
    job = start("-np", "2")
    job.await_lines()
    job.strike(kill(job.workers()[1]))
    assert job.ended(10) == 1, job.output
    job.await_words(r"rank 1 of 2 was killed by SIGKILL\.")
    record(3, "`kill -9` of one worker, no restarts allowed", job)


def test_all_workers_killed_at_once_start_from_the_disk(start: Start, record: Record) -> None:
    job = start("-np", "2", *RESTARTS, "--min-workers", "1")
    job.await_lines()
    first, second = job.workers()

    def kill_both() -> None:
        os.kill(first, signal.SIGKILL)
        os.kill(second, signal.SIGKILL)

    job.strike(kill_both)
    # More follows where another test has a process killed for want of memory meanwhile.
    job.await_words(r"rank \d of \d was killed by SIGKILL[.;]")
    job.await_that(lambda: len(job.events("resumed")) > 0, "restart")
    job.await_lines()
    job.stop()
    record(4, "`kill -9` of every worker", job)


def test_a_killed_launcher_takes_its_workers_with_it(start: Start, record: Record) -> None:
    job = start("-np", "2", interpreter="fresh")
    job.await_lines()
    job.strike(job.process.kill)
    assert job.ended(10) == -signal.SIGKILL
    record(5, "`kill -9` of the launcher", job)


def test_a_launcher_that_is_killed_after_its_reaper_takes_its_workers_with_it(start: Start) -> None:
    job = start("-np", "2", interpreter="fresh")
    job.await_lines()
    (reaper,) = [process for process in job.children_of(job.process.pid) if b"orphan_reaper.py" in command_of(process)]
    os.kill(reaper, signal.SIGKILL)
    job.await_words(r"the process that ends the workers after the launcher is gone; here is another\.")
    job.process.kill()
    assert job.ended(20) == -signal.SIGKILL


def test_a_rank_stopped_for_long_is_named_and_the_job_started_again(start: Start, record: Record) -> None:
    """The watchdog of the other one explains; the launcher kills the frozen one and starts both."""
    options = (*ENDLESS, "--watchdog", STOPPED_FOR_S)
    job = start("-np", "2", *RESTARTS, options=(*options, "--watchdog-action", "end"))
    job.await_lines()
    job.strike(kill(job.workers()[1], signal.SIGSTOP))
    job.await_words(r"Rank 1 has reported nothing: it is frozen or gone")
    job.await_that(lambda: len(job.events("resumed")) > 0, "restart")
    job.await_lines()
    job.stop()
    assert list((job.out / "stalls").rglob("*.stacks.txt")), "stacks"
    record(11, f"SIGSTOP of a rank, longer than `--watchdog {STOPPED_FOR_S}`", job)


def test_a_rank_stopped_for_a_moment_is_waited_for(start: Start, record: Record) -> None:
    job = start("-np", "2", *RESTARTS, options=(*ENDLESS, "--watchdog", "60"))
    job.await_lines()
    worker = job.workers()[1]
    job.strike(kill(worker, signal.SIGSTOP))
    time.sleep(1)  # so long lasts the fault
    os.kill(worker, signal.SIGCONT)
    job.await_lines()
    job.stop()
    assert not job.events("resumed")
    record(12, "SIGSTOP and SIGCONT, shorter than that", job)


def test_sigterm_saves_after_one_step_of_all(start: Start, record: Record) -> None:
    job = start("-np", "2")
    job.await_lines()
    job.strike(lambda: None)
    job.stop()
    job.await_words(r"stopped by SIGTERM .* after step \d+, which a checkpoint holds")
    record(15, "SIGTERM", job)


def test_a_damaged_checkpoint_is_passed_over_aloud(start: Start, record: Record) -> None:
    job = start("-np", "2", *RESTARTS)
    job.await_lines(6)
    workers = job.workers()
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)  # so that no newer one is written, not even by rank 0's thread
    job.await_that(lambda: all(map(is_stopped, workers)), "the end of what they did")
    checkpoints = job.out / "checkpoints"
    newest = checkpoints / (checkpoints / "latest").read_text().strip()  # a later one may be there, and is tried last
    file = newest / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1

    def damage() -> None:
        file.write_bytes(content)
        for worker in workers:
            os.kill(worker, signal.SIGKILL)

    job.strike(damage)
    job.await_words(rf"skipping a damaged checkpoint: .*{newest.name}")
    job.await_lines()
    job.stop(most_lost=3 * INTERVAL)
    record(19, "one bit of a checkpoint flipped", job)


def test_a_folder_that_cannot_be_written_is_refused_before_the_first_step(
    start: Start, record: Record, tmp_path: Path
) -> None:
    """Its parent is a file; or its disk is mounted read-only, so that root, too, cannot write."""
    (tmp_path / "file").write_text("not a folder")
    folders, disk = ["file/run"], tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True, timeout=30).returncode == 0:
        folders.append("disk/run")
    try:
        for folder in folders:
            job = start("-np", "2", options=("--output-dir", folder))
            job.strike(lambda: None)
            assert job.ended() == 2, job.output
            job.await_words(rf"The run folder \S*{folder} cannot be written: ")
            assert "HINT: " in job.output
    finally:
        if len(folders) > 1:
            subprocess.run(["umount", "-l", str(disk)], check=True, timeout=30)
    record(20, "an output folder that cannot be made, or that is read-only", job)


def test_an_exception_on_one_rank_is_printed_once_and_ends_all(start: Start, record: Record, tmp_path: Path) -> None:
    fault = {"place": "measure", "kind": "raise", "rank": 1, "call": 3, "stamp": str(tmp_path / "stamp")}
    job = start("-np", "2", options=("--task", "train_torch_tasks:Faulty"), TRAIN_FAULT=json.dumps(fault))
    job.strike(lambda: None)
    assert job.ended() == 1, job.output
    job.await_words(r"hvdtrain launch: rank 1 of 2 ")
    assert job.output.count("Traceback (most recent call last)") == 1, job.output
    record(21, "an exception on one rank", job)


def test_a_crash_is_restarted_and_its_signal_named(start: Start, record: Record) -> None:
    job = start("-np", "2", *RESTARTS)
    job.await_lines()
    job.strike(kill(job.workers()[1], signal.SIGSEGV))
    job.await_words(r"rank 1 of 2 was killed by SIGSEGV\.")
    job.await_lines()
    job.stop()
    record(24, "SIGSEGV", job)


def test_a_crash_loop_stops_at_the_cap(start: Start, record: Record, tmp_path: Path) -> None:
    fault = {"place": "measure", "kind": "raise", "rank": 1, "call": 3, "stamp": str(tmp_path / "stamp")}
    job = start("-np", "2", *RESTARTS, options=("--task", "train_torch_tasks:Faulty"), TRAIN_FAULT=json.dumps(fault))
    job.strike(lambda: None)
    assert job.ended() == 1, job.output
    job.await_words(r"hvdtrain launch: given up after 2 of 2 restarts\.")
    record(28, "a crash loop", job)


def test_a_discovery_script_that_fails_is_refused_first_and_reported_later(
    start: Start, record: Record, tmp_path: Path
) -> None:
    script = tmp_path / "discover"
    script.write_text("#!/bin/sh\nexit 3\n")
    script.chmod(0o755)
    flags = ("-np", "2", "--min-workers", "1", "--max-restarts", "2", "--host-discovery-script", str(script))
    first = start(*flags)
    assert first.ended() == 2, first.output
    script.write_text("#!/bin/sh\necho localhost:2\n")
    job = start(*flags)
    job.await_lines()
    job.strike(lambda: script.write_text("#!/bin/sh\nexit 3\n"))
    job.await_words(r"ended with exit code 3: .* The hosts that it named before stay in use\.")
    job.await_lines()
    job.stop()
    record(29, "a host discovery script that fails", job)
