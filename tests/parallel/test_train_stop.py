"""A signal to any rank stops all of them after one step, with a checkpoint; going on from it leaves no trace of it."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.process_table import variables_of
from support.processes import Spawned, environment, python_path, run_command
from support.ranks import launcher_argv, run_ranks
from support.runs import lines_of, result_of
from support.warm.interpreters import with_interpreter

WORKERS = Path(__file__).parent / "workers"
DEADLINE_S = 150.0
LINE = "which a checkpoint holds; to go on, start the same command again"
EPOCHS = ["--epochs", "2", "--log-interval", "50"]  # of 30 steps
ENDLESS = ["--epochs", "2000", "--log-interval", "20"]


def variables(**stop: Any) -> dict[str, str]:
    return {**python_path(WORKERS), "OMP_NUM_THREADS": "1", **({"TRAIN_STOP": json.dumps(stop)} if stop else {})}


def command(framework: str, out: Path, *flags: str) -> list[str]:
    module = "train_stop_keras" if framework == "tensorflow" else "train_stop_torch"
    task = ["--task", f"{module}:Stopped", "--output-dir", str(out), "--progress", "none", "--report", "never"]
    return ["python", "-m", "hvdtrain", *task, *EPOCHS, *flags]


def last_steps(out: Path) -> list[int]:
    """The step at which each rank ended, by its own log, in the order of ranks."""
    ends = [re.findall(r"run ended: step (\d+)", path.read_text())[-1:] for path in sorted((out / "logs").iterdir())]
    return [int(step) for (step,) in ends]


def require_stopped(finished: Any, out: Path, size: int, launcher: str, reason: str) -> None:
    code = {"mpirun": 75, "horovodrun-gloo": 1}[launcher]  # horovodrun has one code for every failure …
    assert finished.returncode == code, finished.tail()
    assert re.search(r"[Ee]xit code: +75", finished.stdout + finished.stderr), finished.tail()  # … but it tells
    assert f"hvdtrain: stopped by {reason} after step " in finished.stdout, finished.tail()
    assert finished.stdout.count(LINE) == 1, finished.tail()
    assert "failed:" not in finished.stderr, finished.tail()
    assert "stopped: A collective" not in finished.stderr, finished.tail()
    step = result_of(out)["steps"]
    assert result_of(out)["status"] == "stopped"
    assert last_steps(out) == [step] * size
    assert (out / "checkpoints" / "latest").read_text() == f"step_{step:08d}\n"


def require_exact(out: Path) -> None:
    verified = run_command(["python", "-m", "hvdtrain", "shard", "verify", str(out)], DEADLINE_S)
    assert verified.returncode == 0, verified.tail()
    assert "exact: each of 2 finished epochs" in verified.stdout, verified.tail()


@pytest.mark.parametrize(
    ("launcher", "framework", "size", "ranks", "signal_name", "reason"),
    [
        ("mpirun", "torch", 2, [1], "SIGTERM", "SIGTERM (rank 1)"),
        ("horovodrun-gloo", "torch", 3, [0, 2], "SIGUSR1", "SIGUSR1 (ranks 0, 2)"),
        ("mpirun", "tensorflow", 2, [0, 1], "SIGTERM", "SIGTERM (all ranks)"),
        ("mpirun", "stages", 2, [1], "SIGTERM", "SIGTERM (rank 1)"),
    ],
)
def test_stopped_and_started_again_it_is_the_run_that_was_never_stopped(
    launcher: str, framework: str, size: int, ranks: list[int], signal_name: str, reason: str, tmp_path: Path
) -> None:
    out, whole = tmp_path / "out", tmp_path / "whole"
    alone = {"place": "decode", "call": 10}  # at any moment; those of several ranks come between the same two votes
    request = {"signal": signal_name, "ranks": ranks, **(alone if len(ranks) == 1 else {"place": "step", "call": 5})}
    calls = {"tensorflow": ["--steps-per-call", "4"], "stages": ["--parallel.stages", "2"]}.get(framework, [])
    first = run_ranks(command(framework, out, *calls), size, launcher, DEADLINE_S, variables(**request), tmp_path)
    require_stopped(first, out, size, launcher, reason)
    assert 1 < result_of(out)["steps"] < 60
    for folder, flags in ((out, calls), (whole, calls if framework == "stages" else [])):  # stages sum in another order
        finished = run_ranks(command(framework, folder, *flags), size, launcher, DEADLINE_S, variables(), tmp_path)
        assert finished.returncode == 0, finished.tail()
    assert result_of(out)["weights"] == result_of(whole)["weights"]
    assert result_of(out)["metrics"] == result_of(whole)["metrics"]
    assert result_of(out)["samples_seen"] == result_of(whole)["samples_seen"]
    require_exact(out)


@pytest.mark.parametrize(
    ("launcher", "framework", "size", "place", "call"),
    [
        ("mpirun", "torch", 3, "import", 1),
        ("horovodrun-gloo", "torch", 2, "build_model", 1),
        ("horovodrun-gloo", "tensorflow", 2, "decode", 12),
    ],
)
def test_a_request_may_come_at_any_time(
    launcher: str, framework: str, size: int, place: str, call: int, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    request = {"signal": "SIGTERM", "ranks": [size - 1], "place": place, "call": call}
    finished = run_ranks(command(framework, out), size, launcher, DEADLINE_S, variables(**request), tmp_path)
    require_stopped(finished, out, size, launcher, f"SIGTERM (rank {size - 1})")
    assert (result_of(out)["steps"] == 0) is (place != "decode")


def start(argv: list[str], folder: Path, added: Mapping[str, str] | None = None) -> Spawned:
    """A launcher, or hvdtrain itself."""
    return Spawned(with_interpreter(argv), environment({**variables(), **(added or {})}), folder)


def worker(job: Spawned, rank: int) -> int:
    """The process of a rank, which runs hvdtrain itself: its launcher has started what stands for it."""
    from hvdtrain.topology import detect_topology

    started = [process for process in job.processes() if job.forked(process) != process]
    (found,) = (process for process in started if detect_topology(variables_of(process)).rank == rank)
    return job.forked(found)


def await_steps(out: Path, job: Spawned) -> None:
    job.await_that(lambda: bool(lines_of(out, step=20)), "step 20", DEADLINE_S)


@pytest.mark.parametrize(
    ("launcher", "number", "code"), [("mpirun", signal.SIGUSR1, 75), ("horovodrun-gloo", signal.SIGTERM, 1)]
)
def test_launchers_pass_it_on(launcher: str, number: signal.Signals, code: int, tmp_path: Path) -> None:
    """mpirun of Open MPI 5 kills its workers half a second after SIGTERM; SIGUSR1 it passes on."""
    out = tmp_path / "out"
    argv = [*launcher_argv(launcher, 2), *command("torch", out, *ENDLESS)]
    with start(argv, tmp_path) as job:
        await_steps(out, job)
        job.process.send_signal(number)
        finished = job.wait(DEADLINE_S)
    assert finished.returncode == code, finished.tail()
    step = result_of(out)["steps"]
    assert last_steps(out) == [step, step]
    assert (out / "checkpoints" / "latest").read_text() == f"step_{step:08d}\n"


def test_a_second_sigterm_ends_a_rank_that_waits_for_another(tmp_path: Path) -> None:
    """The other is stopped by SIGSTOP: a graceful end would wait for it until --stall-timeout."""
    out = tmp_path / "out"
    argv = [*launcher_argv("mpirun", 2), *command("torch", out, *ENDLESS)]
    with start(argv, tmp_path) as job:
        await_steps(out, job)
        os.kill(worker(job, 1), signal.SIGSTOP)
        first = worker(job, 0)
        os.kill(first, signal.SIGTERM)
        time.sleep(1.5)  # longer than what counts as an echo of the same request
        os.kill(first, signal.SIGTERM)
        finished = job.wait(DEADLINE_S)
    assert finished.returncode == 143, finished.tail()
    assert "SIGTERM came again; leaving at once" in finished.output
    assert not (out / "result.json").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_who_is_ended_during_the_save_leaves_the_checkpoint_before(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    """The disk is slow; the second SIGTERM, or the SIGKILL of a scheduler whose patience is over, comes meanwhile."""
    out, stamp = tmp_path / "out", tmp_path / "stamp"
    train = command("torch", out, *ENDLESS)
    before = run_command([*train, "--max-steps", "20"], DEADLINE_S, variables(), tmp_path)
    assert before.returncode == 0, before.tail()
    slow = {"SLOW_RENAME": r"checkpoints/step_\d+$", "SLOW_STAMP": str(stamp)}
    with start(train, tmp_path, slow) as job:
        job.await_that(stamp.exists, "save at the end of the first epoch", DEADLINE_S)
        job.process.send_signal(signal.SIGTERM)
        time.sleep(1.5)
        assert job.running, job.output
        job.process.send_signal(number)
        finished = job.wait(20)
    assert finished.returncode == code, finished.tail()
    assert (out / "checkpoints" / "latest").read_text() == "step_00000020\n"
    assert [path.name for path in (out / "checkpoints").glob("step_*")] == ["step_00000020"]
    after = run_command([*train, "--max-steps", "22"], DEADLINE_S, variables(), tmp_path)
    assert after.returncode == 0, after.tail()
    assert "after step" not in after.stdout + after.stderr
    assert last_steps(out) == [22]
    assert not [path for path in (out / "checkpoints").iterdir() if path.name.endswith(".tmp")]
