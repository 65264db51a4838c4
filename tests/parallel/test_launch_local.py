"""`hvdtrain launch local`: real workers, killed and stopped; nothing is left running, and the cause is named."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

WORKERS = Path(__file__).parent / "workers"
DEADLINE_S = 180.0
GONE_S = 10.0
MARK = "HVDTRAIN_TEST_RUN"
LONG = ["--epochs", "2000", "--checkpoint-interval", "5"]


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

    def await_steps(self, steps: int) -> None:
        """Until training has written that many lines of metrics."""
        self.await_that(lambda: self._lines() >= steps, f"{steps} lines of metrics")
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

    def _lines(self) -> int:
        path = self.folder / "out" / "metrics.jsonl"
        return path.read_text().count('"split"') if path.exists() else 0

    def await_that(self, condition: Callable[[], bool], what: str, seconds: float = DEADLINE_S) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            late = time.monotonic() > deadline or (self.process.poll() is not None and not self.processes())
            assert not late or condition(), f"no {what} within {seconds} s: {[*self.processes()]}\n{self.tail()}"
            time.sleep(0.02)


def all_stopped(process: int) -> bool:
    stats = [path.read_text() for path in Path(f"/proc/{process}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


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


def test_the_default_task_is_trained(start: Start) -> None:
    job = start()
    assert job.wait() == 0, job.tail()
    job.await_gone()
    result = json.loads((job.folder / "out" / "result.json").read_text())
    assert result["world_size"] == 2
    assert result["metrics"]["accuracy"] >= 0.97
    assert "[1]" not in job.stdout + job.stderr, job.tail()
    assert job.stderr.count("epoch 12/12") == 1, job.tail()


def test_tensorflow(start: Start) -> None:
    job = start("--framework", "tensorflow", "--max-steps", "3", "--warmup-epochs", "0")
    assert job.wait() in (0, 75), job.tail()
    job.await_gone()
    result = json.loads((job.folder / "out" / "result.json").read_text())
    assert (result["framework"], result["world_size"], result["steps"]) == ("tensorflow", 2, 3)


def test_three_workers_and_one(start: Start) -> None:
    for np in (3, 1):
        job = start("--max-steps", "2", "--resume", "auto", np=np)
        assert job.wait() in (0, 75), job.tail()
        assert json.loads((job.folder / "out" / "env.json").read_text())["topology"]["size"] == np


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_worker_ends_all_and_is_named(rank: int, start: Start) -> None:
    job = start(*LONG, "--data.processes", "1")
    job.await_steps(3)
    os.kill(job.worker(rank), signal.SIGKILL)
    assert job.wait(GONE_S) == 1, job.tail()
    job.await_gone(1)
    assert f"hvdtrain launch: rank {rank} of 2 was killed by SIGKILL." in job.stderr, job.tail()


def test_a_killed_launcher_leaves_nothing_behind(start: Start) -> None:
    job = start(*LONG, "--data.processes", "1")
    job.await_steps(3)
    assert len(job.processes()) >= 6  # launcher, its guard, two workers, a decoding process of each
    os.kill(job.worker(1), signal.SIGSTOP)  # else the broken pipes of a dead launcher might end the workers as well
    job.process.kill()
    job.await_gone()


def test_a_stopped_worker_is_killed_too(start: Start) -> None:
    """SIGSTOP is a way not to notice anything."""
    job = start(*LONG)
    job.await_steps(3)
    os.kill(job.worker(0), signal.SIGSTOP)
    os.kill(job.worker(1), signal.SIGKILL)
    assert job.wait(GONE_S) == 1, job.tail()
    job.await_gone(1)
    assert "hvdtrain launch: rank 1 of 2 was killed by SIGKILL." in job.stderr, job.tail()


def test_an_exception_on_one_rank_comes_first_and_last(start: Start) -> None:
    job = start(place="measure", kind="raise", call=4)
    assert job.wait() == 1, job.tail()
    heading = job.stderr.index("hvdtrain launch: rank 1 of 2 failed with exit code 1. Its last lines:")
    text = "RuntimeError: deliberate failure in measure"
    assert job.stderr.index(f"[1] {text}\n") < heading, job.tail()
    assert job.stderr.endswith(f"\n  [1] {text}\n"), job.tail()
    other = job.stderr.find("stopped: A collective")
    assert other < 0 or job.stderr.index(text) < other, job.tail()


@pytest.mark.parametrize("flag", ["--epochz", "--data.threadz"])
def test_bad_usage_is_said_once_and_not_tried_again(flag: str, start: Start) -> None:
    job = start(flag, "3", flags=("--max-restarts", "3"))
    assert job.wait() == 2, job.tail()
    assert job.stderr.count(f"There is no flag {flag}.") == 1, job.tail()
    assert job.stderr.count("HINT: ") == 1, job.tail()
    assert "hvdtrain launch" not in job.stderr, job.tail()
    assert job.stderr.index("There is no flag") < job.stderr.index("HINT: ")


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


def test_a_killed_worker_is_restarted_and_every_record_is_used_once(start: Start, run_command: Any) -> None:
    job = start("--epochs", "40", "--checkpoint-interval", "5", flags=("--max-restarts", "1"))
    job.await_steps(12)
    os.kill(job.worker(1), signal.SIGKILL)
    assert job.wait() == 0, job.tail()
    assert "hvdtrain launch: restart 1 of 1 in 1 s." in job.stderr, job.tail()
    events = [json.loads(line) for line in (job.folder / "out" / "metrics.jsonl").read_text().splitlines()]
    assert any(event.get("event") == "resumed" and event["step"] > 0 for event in events)
    verified = run_command([sys.executable, "-m", "hvdtrain", "shard", "verify", "out"], DEADLINE_S, cwd=job.folder)
    assert verified.returncode == 0, verified.tail()
    assert json.loads((job.folder / "out" / "result.json").read_text())["epochs"] == 40


def test_a_crash_loop_stops_at_the_cap(start: Start) -> None:
    fault = {"place": "measure", "kind": "segv", "call": 4}
    job = start(flags=("--max-restarts", "2", "--backoff", "0.2"), **fault)
    assert job.wait() == 1, job.tail()
    job.await_gone()
    assert job.stderr.count("was killed by SIGSEGV") == 3, job.tail()
    assert re.findall(r"restart (\d) of 2 in ([\d.]+) s", job.stderr) == [("1", "0.2"), ("2", "0.4")], job.tail()
    assert "given up after 2 of 2 restarts" in job.stderr, job.tail()
    assert "in measure" in job.stderr[job.stderr.rindex("Its last lines:") :], job.tail()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_reaches_the_workers_and_decides_the_exit_code(
    number: signal.Signals, code: int, start: Start
) -> None:
    job = start(*LONG, flags=("--max-restarts", "5"))
    job.await_steps(3)
    job.process.send_signal(number)
    assert job.wait(30) == code, job.tail()
    job.await_gone(1)
    assert f"hvdtrain launch: stopped by {number.name}." in job.stderr, job.tail()
    assert "restart" not in job.stderr, job.tail()


def test_workers_that_ignore_a_signal_are_killed_after_the_grace(start: Start) -> None:
    job = start(*LONG, flags=("--grace", "2"))
    job.await_steps(3)
    for process in [job.worker(0), job.worker(1)]:
        os.kill(process, signal.SIGSTOP)  # no signal but SIGKILL ends a process whose threads are all stopped
        job.await_that(lambda p=process: all_stopped(p), "stop of all threads")  # type: ignore[misc]
    job.process.send_signal(signal.SIGTERM)
    assert job.wait(2 + GONE_S) == 143, job.tail()
    job.await_gone(1)
    assert "ranks 0, 1 did not leave in time and had to be killed" in job.stderr, job.tail()


def test_a_signal_ends_the_wait_for_a_restart(start: Start) -> None:
    job = start(place="measure", kind="segv", call=4, flags=("--max-restarts", "1", "--backoff", "60"))
    job.await_that(lambda: "restart 1 of 1 in 60 s" in job.stderr, "restart")
    job.process.send_signal(signal.SIGTERM)
    assert job.wait(GONE_S) == 143, job.tail()
    job.await_gone(1)


def test_the_bar_of_rank_0_passes_unchanged(start: Start) -> None:
    job = start("--epochs", "3", "--progress", "bar")
    assert job.wait() == 0, job.tail()
    assert job.stderr.count("\r") > 3, job.tail()
    assert "90/90" in job.stderr.replace("\r", "\n"), job.tail()


def test_no_workers_is_bad_usage(run_command: Any, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "hvdtrain", "launch", "local", "-np", "0", "--", "train"]
    finished = run_command(argv, 60, cwd=tmp_path)
    assert finished.returncode == 2, finished.tail()
    assert finished.stderr.count("HINT: ") == 1, finished.tail()


def answers(port: int, request: bytes) -> bytes:
    """What the server says, until it closes the connection: perhaps before it has read all."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection, suppress(ConnectionError):
        connection.sendall(request)
        while data := connection.recv(4096):
            received += data
    return received


def test_strangers_at_the_rendezvous_are_refused_while_the_job_runs(start: Start) -> None:
    job = start("--epochs", "60")
    job.await_steps(3)
    variables = job.processes()[job.worker(1)]
    address, _, token = variables["HOROVOD_GLOO_RENDEZVOUS_ADDR"].partition("/")
    port = int(address.partition(":")[2])
    path = f"/{token}:{port}/global/0".encode()
    assert answers(port, b"GET /wrong:1/global/rank_0 HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 403 ")
    assert answers(port, b"PUT /wrong:1/global/0 HTTP/1.1\r\nContent-Length: 9\r\n\r\n").startswith(b"HTTP/1.1 403 ")
    assert answers(port, b"POST " + path + b" HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    giant = b"PUT " + path + b" HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n"
    assert answers(port, giant).startswith(b"HTTP/1.1 413 ")
    assert answers(port, b"PUT " + path + b" HTTP/1.1\r\nContent-Length: -1\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert answers(port, b"\x80\x04cposix\nsystem\n\n").startswith(b"HTTP/1.1 400 ")
    assert answers(port, b"GET ") == b""  # after five seconds
    assert answers(port, b"x" * 2**20) == b""
    listening = re.findall(rf": ([0-9A-F]{{8}}):{port:04X} 00000000:0000 0A", Path("/proc/net/tcp").read_text())
    assert listening == ["0100007F"]
    for process in job.processes():
        assert token not in Path(f"/proc/{process}/cmdline").read_text(errors="replace")
    assert job.wait() == 0, job.tail()
    assert token not in job.stdout + job.stderr + (job.folder / "out" / "env.json").read_text()
