"""`hvdtrain launch local`: real training; see test_launch_local_ends.py for all the ways in which jobs end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

WORKERS = Path(__file__).parent / "workers"
DEADLINE_S = 180.0
GONE_S = 10.0
MARK = "HVDTRAIN_TEST_RUN"


class Job:
    """A running launcher, with its outputs in files."""

    def __init__(self, folder: Path, flags: list[str], command: list[str], env: dict[str, str]) -> None:
        self.folder = folder
        self._mark = uuid.uuid4().hex
        self._files = [(folder / name).open("wb") for name in ("stdout", "stderr")]
        path = os.pathsep.join([str(WORKERS), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hvdtrain", "launch", "local", *flags, "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=self._files[0],
            stderr=self._files[1],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path, **env, MARK: self._mark},
            start_new_session=True,
        )

    @property
    def stdout(self) -> str:
        return (self.folder / "stdout").read_bytes().decode(errors="replace")

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr").read_bytes().decode(errors="replace")

    def tail(self) -> str:
        return f"exit code {self.process.returncode}\n{self.stdout[-4000:]}\n--- stderr\n{self.stderr[-6000:]}"

    def processes(self) -> dict[int, dict[str, str]]:
        """Process id → variables, of everything that this run started and that still runs."""
        found = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    words = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
                except OSError:
                    continue  # ended meanwhile
                variables = dict(word.partition("=")[::2] for word in words)
                if variables.get(MARK) == self._mark:
                    found[int(folder.name)] = variables
        return found

    def worker(self, rank: int) -> int:
        """The process of `rank`, not one of its children."""
        launcher = self.process.pid
        (found,) = (
            process
            for process, variables in self.processes().items()
            if variables.get("HOROVOD_RANK") == str(rank) and parent(process) == launcher
        )
        return found

    def variables_of_workers(self) -> list[dict[str, str]]:
        return [variables for variables in self.processes().values() if "HOROVOD_RANK" in variables]

    def await_steps(self, steps: int) -> None:
        """Until training has written that many lines of metrics."""
        self.await_that(lambda: self.steps() >= steps, f"{steps} lines of metrics")
        assert self.process.poll() is None, self.tail()

    def await_gone(self, seconds: float = GONE_S) -> None:
        self.await_that(lambda: not self.processes(), "the end of every process", seconds)

    def wait(self, seconds: float = DEADLINE_S) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the launcher did not end within {seconds} s\n{self.tail()}") from None

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10)
        for process in self.processes():
            os.kill(process, signal.SIGKILL)
        for file in self._files:
            file.close()

    def steps(self) -> int:
        """How many lines of metrics training has written."""
        path = self.folder / "out" / "metrics.jsonl"
        return path.read_text().count('"split"') if path.exists() else 0

    def await_that(self, condition: Callable[[], bool], what: str, seconds: float = DEADLINE_S) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            late = time.monotonic() > deadline or (self.process.poll() is not None and not self.processes())
            assert not late or condition(), f"no {what} within {seconds} s: {[*self.processes()]}\n{self.tail()}"
            time.sleep(0.02)


def parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


Start = Callable[..., Job]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `hvdtrain launch local -np 2 FLAGS -- train COMMAND --output-dir out`."""
    jobs: list[Job] = []

    def start_job(*command: str, flags: tuple[str, ...] = (), np: int = 2, **fault: Any) -> Job:
        env = {}
        task: list[str] = []
        if fault:
            env["TRAIN_FAULT"] = json.dumps({"rank": 1, "call": 1, "stamp": str(tmp_path / "stamp"), **fault})
            task = ["--task", "train_torch_tasks:Faulty"]
        argv = ["train", *task, *command, "--output-dir", "out"]
        jobs.append(Job(tmp_path, ["-np", str(np), *flags], argv, env))
        return jobs[-1]

    yield start_job
    for job in jobs:
        job.close()


def test_the_default_task_survives_a_killed_worker(start: Start, run_command: Any) -> None:
    """Every record of every epoch is used once, and the task is learned."""
    job = start("--epochs", "5", "--checkpoint-interval", "10", flags=("--max-restarts", "1"))
    latest = job.folder / "out" / "checkpoints" / "latest"
    job.await_that(lambda: job.steps() >= 3 and latest.exists(), "a checkpoint, and steps after it")
    (token,) = {v["HOROVOD_GLOO_RENDEZVOUS_ADDR"].partition("/")[2] for v in job.variables_of_workers()}
    os.kill(job.worker(1), signal.SIGKILL)
    assert job.wait() == 0, job.tail()
    job.await_gone(1)
    assert "hvdtrain launch: rank 1 of 2 was killed by SIGKILL." in job.stderr, job.tail()
    assert "hvdtrain launch: restart 1 of 1 in 1 s." in job.stderr, job.tail()
    assert ", 2 workers by hvdtrain launch on 1 node" in job.stdout.splitlines()[0], job.tail()
    assert job.stderr.count("epoch 5/5") == 1, job.tail()
    events = [json.loads(line) for line in (job.folder / "out" / "metrics.jsonl").read_text().splitlines()]
    assert any(event.get("event") == "resumed" and event["step"] > 0 for event in events)
    verified = run_command(["python", "-m", "hvdtrain", "shard", "verify", "out"], DEADLINE_S, cwd=job.folder)
    assert verified.returncode == 0, verified.tail()
    result = json.loads((job.folder / "out" / "result.json").read_text())
    assert (result["world_size"], result["epochs"], result["metrics"]["accuracy"] >= 0.95) == (2, 5, True)
    (restart,) = result["goodput"]["restarts"]
    assert restart["cause"] == "rank 1 of 2 was killed by SIGKILL."
    assert restart["lost_steps"] >= 0
    assert 0 < result["goodput"]["share"] < 1
    assert token not in job.stdout + job.stderr + (job.folder / "out" / "env.json").read_text()


def test_tensorflow(start: Start) -> None:
    job = start("--framework", "tensorflow", "--max-steps", "3", "--warmup-epochs", "0")
    assert job.wait() in (0, 75), job.tail()
    job.await_gone()
    result = json.loads((job.folder / "out" / "result.json").read_text())
    assert (result["framework"], result["world_size"], result["steps"]) == ("tensorflow", 2, 3)


def test_one_worker_and_three_whose_bar_passes_unchanged(start: Start) -> None:
    job = start("--max-steps", "2", np=1)
    assert job.wait() in (0, 75), job.tail()
    job = start("--epochs", "1", "--progress", "bar", "--resume", "auto", np=3)
    assert job.wait() == 0, job.tail()
    assert json.loads((job.folder / "out" / "env.json").read_text())["topology"]["size"] == 3
    assert "[1]" not in job.stdout + job.stderr, job.tail()
    assert job.stderr.count("\r") >= 2, job.tail()  # more on a slower machine
    assert "30/30" in job.stderr.replace("\r", "\n"), job.tail()


def test_an_exception_on_one_rank_comes_first_and_last(start: Start) -> None:
    job = start(place="measure", kind="raise", call=4)
    assert job.wait() == 1, job.tail()
    heading = job.stderr.index("hvdtrain launch: rank 1 of 2 failed with exit code 1. Its last lines:")
    text = "RuntimeError: deliberate failure in measure"
    assert re.search(rf"^\[1\] rank 1 on \S+ failed: {text} \(", job.stderr[:heading], re.MULTILINE), job.tail()
    assert job.stderr.endswith(f"\n  [1] {text}\n"), job.tail()
    assert job.stderr.count("Traceback (most recent call last)") == 1, job.tail()
    other = job.stderr.find("stopped: A collective")
    assert other < 0 or job.stderr.index(text) < other, job.tail()


def test_an_exception_on_all_ranks_is_told_once(start: Start) -> None:
    job = start(place="measure", kind="raise", call=4, rank="all")
    assert job.wait() == 1, job.tail()
    assert re.search(r"^rank 0 on \S+ failed.*:\nTraceback", job.stderr, re.MULTILINE), job.tail()
    assert job.stderr.count("Traceback (most recent call last)") == 1, job.tail()
    assert "hvdtrain launch: rank 0 of 2 failed with exit code 1. Its last lines:" in job.stderr, job.tail()


def test_a_rank_that_hangs_is_blamed_and_not_those_that_waited(start: Start) -> None:
    job = start("--stall-timeout", "5", place="measure", kind="hang", call=4)
    assert job.wait() == 1, job.tail()
    report = job.stderr[job.stderr.rindex("hvdtrain launch: ") :]
    assert report.startswith("hvdtrain launch: rank 1 of 2 took no part in a collective operation"), job.tail()


@pytest.mark.parametrize("flag", ["--epochz", "--data.threadz"])
def test_bad_usage_is_said_once_and_not_tried_again(flag: str, start: Start) -> None:
    job = start(flag, "3", flags=("--max-restarts", "3"))
    assert job.wait() == 2, job.tail()
    assert job.stderr.count(f"There is no option {flag}.") == 1, job.tail()
    assert job.stderr.count("HINT: ") == 1, job.tail()
    assert "hvdtrain launch" not in job.stderr, job.tail()
    assert job.stderr.index("There is no option") < job.stderr.index("HINT: ")


def test_bad_usage_of_one_rank_only(start: Start) -> None:
    job = start(place="import", kind="refuse")
    assert job.wait() == 2, job.tail()
    assert job.stderr.count("There is a deliberate refusal in import.") == 1, job.tail()
    assert job.stderr.startswith("[1] rank 1 on "), job.tail()


def test_a_worker_that_never_comes_is_named(start: Start) -> None:
    job = start(place="import", kind="hang", flags=("--start-timeout", "10"))
    assert job.wait(10 + DEADLINE_S / 3) == 1, job.tail()
    job.await_gone(1)
    assert re.search(r"rank 1 \(process \d+\) did not join the other ranks within 10 seconds", job.stderr), job.tail()
    assert "HINT: " in job.stderr


def test_no_workers_is_bad_usage(run_command: Any, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "hvdtrain", "launch", "local", "-np", "0", "--", "train"]
    finished = run_command(argv, 60, cwd=tmp_path)
    assert finished.returncode == 2, finished.tail()
    assert finished.stderr.count("HINT: ") == 1, finished.tail()
