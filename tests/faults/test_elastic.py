"""Workers that go on in their processes after a loss, and that come and go: real trainings under `launch local`."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.jobs import ENDLESS, WORKERS, Job
from support.processes import DEADLINE_S
from support.runs import latest_checkpoint, result_of

from hvdtrain.topology.topology import assign_places
from hvdtrain.world_channel import CHANNEL_VARIABLE, WORLD_VARIABLE, line_of

pytestmark = pytest.mark.timeout(900)


def test_survivors_keep_their_processes_and_a_new_worker_joins(start: Callable[..., Job]) -> None:
    """Rank 0 is killed: who is rank 0 then reads the checkpoint."""
    flags = ("-np", "3", "--min-workers", "1", "--max-restarts", "3")
    job = start(*flags)
    job.await_lines(4)
    first = job.workers()
    os.kill(first[0], signal.SIGKILL)
    job.await_that(lambda: "2 workers train on." in job.output, "world of two")
    job.await_that(lambda: "3 workers train on, of which 1 joined." in job.output, "world of three")
    assert set(first[1:]) < set(job.workers())
    threads = {variables["OMP_NUM_THREADS"] for variables in job.variables()}
    assert len(threads) == 1, "with other threads it would compute other last bits"
    job.await_lines(3)
    job.stop()
    assert job.output.count("rank 0 of 3 was killed by SIGKILL") == 1, job.output
    assert "restart 1 of 3, by the workers that are left" in job.output
    cut = [line for line in job.output.splitlines() if line.startswith("model: ") and "accumulate-steps 2" in line]
    assert len(cut) == 1, "two workers have larger parts of the global batch than three, and no more memory"
    result = result_of(job.out)
    assert [restart["cause"][:8] for restart in result["goodput"]["restarts"]] == ["rank 0 o"], "joining is none"


def test_a_request_to_stop_finds_a_new_worker_that_has_just_got_its_place(tmp_path: Path) -> None:
    """Those that it joins wait for it until it stops with them. The launcher's end of its channel is this test's."""
    launcher, workers = socket.socketpair()
    place = assign_places([socket.gethostname()])[0].variables
    variables = {**os.environ, **place, WORLD_VARIABLE: "0", CHANNEL_VARIABLE: str(workers.fileno())}
    argv = [sys.executable, "-m", "hvdtrain", "train", "--epochs", "5000", "--output-dir", "out"]
    with launcher, subprocess.Popen(argv, env=variables, cwd=tmp_path, pass_fds=[workers.fileno()]) as worker:
        workers.close()
        launcher.settimeout(DEADLINE_S)
        try:
            assert launcher.recv(4096) == line_of({"ready": 0})
            worker.send_signal(signal.SIGTERM)
            launcher.sendall(line_of({"variables": {**place, WORLD_VARIABLE: "2"}}))
            assert worker.wait(DEADLINE_S) == 75
        finally:
            worker.kill()
    assert latest_checkpoint(tmp_path / "out").exists()


def test_rank_0_goes_on_from_its_memory_where_the_disk_has_lost_the_checkpoint(
    start: Callable[..., Job],
) -> None:
    job = start("-np", "2", "--min-workers", "1", "--max-restarts", "1", "--grace", "100")
    job.await_lines(4)
    first, second = job.workers()
    for worker in (second, first):
        os.kill(worker, signal.SIGSTOP)
    job.await_that(lambda: _is_stopped(first), "stop")
    newest = max((job.out / "checkpoints").glob("step_*"))  # it may be there before "latest" names it
    file = newest / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    os.kill(second, signal.SIGKILL)
    os.kill(first, signal.SIGCONT)
    job.await_that(lambda: len(job.events("resumed")) > 0, "next world")
    job.await_lines()
    job.stop()
    assert job.events("resumed")[0]["step"] >= int(newest.name.removeprefix("step_"))
    assert "damaged" not in job.output, job.output


def test_workers_come_and_go_as_the_script_says_and_no_step_is_lost(start: Callable[..., Job], tmp_path: Path) -> None:
    places, script = tmp_path / "places", tmp_path / "discover"
    script.write_text(f"#!/bin/sh\ncat {places}\n")
    script.chmod(0o755)
    places.write_text("localhost:4\n")
    flags = ("-np", "4", "--min-workers", "2", "--max-restarts", "1", "--host-discovery-script", str(script))
    job = start(*flags)
    job.await_lines(2)
    for number, (slots, said) in enumerate([(3, "3 workers train on."), (2, "2 workers train on."), (4, "2 joined.")]):
        places.write_text(f"localhost:{slots}\n")
        job.await_that(lambda said=said: said in job.output, said)  # type: ignore[misc]
        job.await_that(lambda number=number: len(job.events("resumed")) == number + 1, "start")  # type: ignore[misc]
        job.await_lines()
    places.write_text("nonsense of the script\n")
    job.await_that(lambda: "The hosts that it named before stay in use." in job.output, "complaint")
    job.await_lines()
    job.stop()
    goodput = result_of(job.out)["goodput"]
    assert (goodput["restarts"], goodput["lost_steps"]) == ([], 0)
    assert re.findall(r"in torch .*, (\d) workers", job.output) == ["4", "3", "2", "4"]


def test_a_frozen_worker_is_gone_without_and_a_stop_leaves_a_checkpoint(start: Callable[..., Job]) -> None:
    flags = ("-np", "3", "--min-workers", "1", "--max-restarts", "2", "--grace", "5")
    job = start(*flags)
    job.await_lines(4)
    first, second, third = job.workers()
    os.kill(third, signal.SIGSTOP)
    os.kill(second, signal.SIGKILL)
    job.await_that(lambda: len(job.events("resumed")) == 1, "second start")
    assert "1 worker trains on." in job.output
    assert first in job.workers()
    job.stop()
    result = result_of(job.out)
    assert result["status"] == "stopped", result
    assert latest_checkpoint(job.out).name == f"step_{result['steps']:08d}"


def test_a_frozen_worker_that_the_watchdog_names_is_gone_without(start: Callable[..., Job]) -> None:
    """The others end their collectives and keep their processes; the cause is the frozen one."""
    flags = ("-np", "3", "--min-workers", "1", "--max-restarts", "2", "--grace", "5")
    options = (*ENDLESS, "--watchdog", "6", "--watchdog-action", "end")
    job = start(*flags, options=options)
    job.await_lines(4)
    first, second, third = job.workers()
    os.kill(second, signal.SIGSTOP)
    job.await_words(r"Training has not gone on for \d+ s\. Rank 1 has reported nothing: it is frozen or gone")
    job.await_that(lambda: len(job.events("resumed")) == 1, "next world")
    assert {first, third} <= set(job.workers()), "a third one may have come meanwhile"
    job.await_lines()
    job.stop()
    (restart,) = result_of(job.out)["goodput"]["restarts"]
    assert restart["cause"].startswith("rank 1 of 3 "), restart


def test_a_worker_that_is_killed_during_a_stop_keeps_no_other_from_saving(start: Callable[..., Job]) -> None:
    job = start("-np", "2", "--min-workers", "2", "--max-restarts", "1", "--grace", "200")
    job.await_lines(4)
    _, second = job.workers()
    os.kill(second, signal.SIGSTOP)  # so that the others cannot agree on a step
    job.await_that(lambda: _is_stopped(second), "stop")  # a thread that still runs would take the next signal first
    job.process.send_signal(signal.SIGTERM)
    job.await_that(lambda: _has_pending(second, signal.SIGTERM), "signal that was passed on")
    os.kill(second, signal.SIGKILL)
    assert job.ended() == 75, job.output
    assert "the last checkpoint is read and saved again for the stop, by the workers that are left." in job.output
    result = result_of(job.out)
    assert (result["status"], result["world_size"]) == ("stopped", 1)
    assert latest_checkpoint(job.out).name == f"step_{result['steps']:08d}"


def _is_stopped(process: int) -> bool:
    states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{process}/task").glob("*/stat")]
    return set(states) == {"T"}


def _has_pending(process: int, number: signal.Signals) -> bool:
    """Whether the kernel keeps that signal for it: proc(5), ShdPnd."""
    found = re.search(r"ShdPnd:\s*(\w+)", Path(f"/proc/{process}/status").read_text())
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)


def test_a_new_worker_that_hangs_while_it_imports_is_ended_and_another_one_joins(
    start: Callable[..., Job], tmp_path: Path
) -> None:
    """The task's module hangs once, in the first worker that is started later."""
    (tmp_path / "hangs_once.py").write_text(HANGS_ONCE)
    options = ("--epochs", "5000", "--checkpoint-interval", "10", "--task", "hangs_once:TorchDigits")
    flags = ("-np", "2", "--min-workers", "1", "--max-restarts", "2", "--start-timeout", "25")
    job = start(*flags, options=options, PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    job.await_lines(2)
    (tmp_path / "hang").touch()
    os.kill(job.workers()[1], signal.SIGKILL)
    job.await_words(r"a further worker \(process \d+\) was not ready within 25 seconds, and is ended\.")
    job.await_that(lambda: "2 workers train on, of which 1 joined." in job.output, "world of two")
    job.await_lines()
    job.stop()


@pytest.mark.parametrize(
    ("fault", "said", "left"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "rank 1 of 3 was killed by SIGKILL", 2),
        ("break_connections()", "The workers lost each other, and none of them had ended. Restart 2 of 2", 3),
    ],
)
def test_what_fails_while_a_world_is_formed_is_mended_by_the_next_one(
    start: Callable[..., Job], tmp_path: Path, fault: str, said: str, left: int
) -> None:
    """Those that wait for the lost worker come back at once, and all that are left keep their processes."""
    (tmp_path / "fails_once.py").write_text(FAILS_ONCE.format(fault=fault))
    options = (*ENDLESS, "--task", "fails_once:Digits")
    flags = ("-np", "4", "--min-workers", "2", "--max-restarts", "2", "--grace", "100")
    job = start(*flags, options=options, PYTHONPATH=f"{tmp_path}:{WORKERS}:{os.environ.get('PYTHONPATH', '')}")
    job.await_lines(2)
    first = job.workers()
    os.kill(first[0], signal.SIGKILL)
    job.await_that(lambda: len(job.events("resumed")) > 0, "next world")
    assert said in job.output, job.output
    assert f"hvdtrain launch: {left} workers train on." in job.output, job.output
    assert len(set(first[1:]) & set(job.workers())) == left
    job.await_lines()
    job.stop()
    assert len(result_of(job.out)["goodput"]["restarts"]) == 2


FAILS_ONCE = """
import os, signal, socket, stat, threading, time
from contextlib import suppress
from paced import Digits

def fail():
    while os.environ.get("HVDTRAIN_WORLD") != "2" or os.environ["HOROVOD_RANK"] != "1":
        time.sleep(0.0005)
    {fault}

def break_connections():
    while os.environ["HVDTRAIN_WORLD"] == "2":
        for file in range(3, 100):
            with suppress(OSError):
                if stat.S_ISSOCK(os.fstat(file).st_mode):
                    with socket.socket(fileno=os.dup(file)) as connection:
                        if connection.family == socket.AF_INET:
                            connection.shutdown(socket.SHUT_RDWR)

threading.Thread(target=fail, daemon=True).start()
"""
HANGS_ONCE = """
import os, time
from pathlib import Path
from hvdtrain.tasks.torch import TorchDigits
try:
    os.unlink(Path(__file__).with_name("hang"))
except FileNotFoundError:
    pass
else:
    time.sleep(3600)
"""
