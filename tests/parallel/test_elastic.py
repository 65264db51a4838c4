"""Workers that go on in their processes after a loss, and that come and go: real trainings under `launch local`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hvdtrain.audit.report import read_coverage

DEADLINE_S = 300.0
pytestmark = pytest.mark.timeout(900)


class Job:
    """A running launcher, its output in a file."""

    def __init__(self, folder: Path, flags: list[str], command: list[str]) -> None:
        self.folder, self.out = folder, folder / "out"
        self._output = (folder / "output").open("wb")
        argv = [sys.executable, "-m", "hvdtrain", "launch", "local", *flags, "--", "train", *command]
        self.process = subprocess.Popen(
            [*argv, "--output-dir", "out", "--progress", "none"],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")},
        )

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")

    def workers(self) -> list[int]:
        """Processes, in the order in which they were started."""
        found: list[int] = []
        for tasks in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            found += map(int, tasks.read_text().split())
        return sorted(process for process in found if b"HOROVOD_RANK=" in environ(process))

    def starts(self) -> list[int]:
        """The step of each start so far."""
        lines = (self.out / "metrics.jsonl").read_text().splitlines() if self.out.exists() else []
        return [line["step"] for line in map(json.loads, lines) if line.get("event") in ("started", "resumed")]

    def await_lines(self, more: int = 1) -> None:
        """Until training has written further lines of metrics."""

        def written() -> int:
            path = self.out / "metrics.jsonl"
            return path.read_text().count('"split": "train"') if path.exists() else 0

        before = written()
        self.await_that(lambda: written() >= before + more, f"{more} further lines of metrics")

    def await_that(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            ended = self.process.poll() is not None
            assert not ended, f"no {what}\n{self.output}"
            assert time.monotonic() < deadline, f"no {what}\n{self.output}"
            time.sleep(0.02)

    def wait(self) -> int:
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the launcher did not end\n{self.output}") from None

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10)
        self._output.close()


def environ(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def start_job(*flags: str, command: tuple[str, ...]) -> Job:
        jobs.append(Job(tmp_path, list(flags), list(command)))
        return jobs[-1]

    yield start_job
    for job in jobs:
        job.close()


def test_survivors_keep_their_processes_and_a_new_worker_joins(start: Callable[..., Job]) -> None:
    """Rank 0 is killed: who is rank 0 then reads the checkpoint."""
    flags = ("-np", "3", "--min-workers", "1", "--max-restarts", "3")
    job = start(*flags, command=("--epochs", "2000", "--checkpoint-interval", "10"))
    job.await_lines(4)
    first = job.workers()
    os.kill(first[0], signal.SIGKILL)
    job.await_that(lambda: "2 workers train on." in job.output, "world of two")
    job.await_that(lambda: "3 workers train on, of which 1 joined." in job.output, "world of three")
    assert set(first[1:]) < set(job.workers())
    threads = {re.search(rb"OMP_NUM_THREADS=\d+", environ(worker)).group() for worker in job.workers()}
    assert len(threads) == 1, "with other threads it would compute other last bits"
    job.await_lines(3)
    job.process.terminate()
    assert job.wait() == 75, job.output
    assert job.output.count("rank 0 of 3 was killed by SIGKILL") == 1, job.output
    assert "restart 1 of 3, by the workers that are left" in job.output
    result = json.loads((job.out / "result.json").read_text())
    assert [restart["cause"][:8] for restart in result["goodput"]["restarts"]] == ["rank 0 o"], "joining is none"
    assert read_coverage(job.out).exact


def test_workers_come_and_go_as_the_script_says_and_no_step_is_lost(start: Callable[..., Job], tmp_path: Path) -> None:
    places, script = tmp_path / "places", tmp_path / "discover"
    script.write_text(f"#!/bin/sh\ncat {places}\n")
    script.chmod(0o755)
    places.write_text("localhost:4\n")
    flags = ("-np", "4", "--min-workers", "2", "--max-restarts", "1", "--host-discovery-script", str(script))
    job = start(*flags, command=("--epochs", "2000", "--checkpoint-interval", "50"))
    job.await_lines(2)
    for number, (slots, said) in enumerate([(3, "3 workers train on."), (2, "2 workers train on."), (4, "2 joined.")]):
        places.write_text(f"localhost:{slots}\n")
        job.await_that(lambda said=said: said in job.output, said)  # type: ignore[misc]
        job.await_that(lambda number=number: len(job.starts()) == number + 2, "start")  # type: ignore[misc]
        job.await_lines()
    places.write_text("nonsense of the script\n")
    job.await_that(lambda: "The hosts that it named before stay in use." in job.output, "complaint")
    job.await_lines()
    job.process.terminate()
    assert job.wait() == 75, job.output
    goodput = json.loads((job.out / "result.json").read_text())["goodput"]
    assert (goodput["restarts"], goodput["lost_steps"]) == ([], 0)
    assert re.findall(r"digits in torch, (\d) workers", job.output) == ["4", "3", "2", "4"]
    assert read_coverage(job.out).exact


def test_a_frozen_worker_is_gone_without_and_a_stop_leaves_a_checkpoint(start: Callable[..., Job]) -> None:
    flags = ("-np", "3", "--min-workers", "1", "--max-restarts", "2", "--grace", "5")
    job = start(*flags, command=("--epochs", "2000", "--checkpoint-interval", "10"))
    job.await_lines(4)
    first, second, third = job.workers()
    os.kill(third, signal.SIGSTOP)
    os.kill(second, signal.SIGKILL)
    job.await_that(lambda: len(job.starts()) == 2, "second start")
    assert "1 worker trains on." in job.output
    assert first in job.workers()
    job.process.terminate()
    assert job.wait() == 75, job.output
    result = json.loads((job.out / "result.json").read_text())
    assert result["status"] == "stopped", result
    assert (job.out / "checkpoints" / "latest").read_text().strip() == f"step_{result['steps']:08d}"


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_the_same_number_of_workers_ends_with_the_same_weights(
    framework: str, tmp_path: Path, run_command: Callable[..., Any]
) -> None:
    """With --min-workers as many as all, survivors wait for the new worker: no sum has other terms."""
    train = ["train", "--framework", framework, "--epochs", "5", "--checkpoint-interval", "5", "--output-dir", "out"]
    faults = ["--faults", "kill", "--every", "1.5s", "--seed", "7", "--count", "2", "--min-workers", "2", "--compare"]
    command = ["python", "-m", "hvdtrain", "chaos", "-np", "2", *faults, "--", *train, "--progress", "none"]
    finished = run_command(command, 800, cwd=tmp_path)
    assert finished.returncode == 0, finished.tail()
    assert "the weights are those of an undisturbed run" in finished.stdout, finished.tail()
    assert "train on, of which 1 joined" in finished.stderr, finished.tail()
