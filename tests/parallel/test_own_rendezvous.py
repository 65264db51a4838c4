"""Ranks that were merely started (torchrun, RANK and WORLD_SIZE by hand) find each other; or say who is missing."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from support.processes import Spawned, free_port, run_command
from support.runs import result_of
from support.warm.interpreters import with_interpreter

from hvdtrain.horovod_wheel.environment import write_start_up

DEADLINE_S = 180.0
SHORT = ["--max-steps", "3", "--warmup-epochs", "0"]


Started = list[Spawned]


def start(folder: Path, variables: Sequence[Mapping[str, str]], *flags: str) -> Started:
    """One process for each set of variables."""
    argv = with_interpreter(["python", "-m", "hvdtrain", *flags, "--output-dir", "out"])
    return [Spawned(argv, {**os.environ, **own}, folder) for own in variables]


def ends(started: Started, seconds: float = DEADLINE_S) -> list[tuple[int, str]]:
    """Exit code and output of each; none outlives the deadline."""
    deadline = time.monotonic() + seconds
    try:
        finished = [each.wait(max(0.1, deadline - time.monotonic())) for each in started]
    finally:
        for each in started:
            each.close()
    return [(each.returncode, each.output) for each in finished]


def by_hand(rank: int, size: int, port: int, **more: str) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), **more}


def test_torchrun_trains(tmp_path: Path) -> None:
    torchrun = Path(sys.executable).parent / "torchrun"
    flags = ["--nproc-per-node", "2", f"--master-port={free_port()}"]
    argv = [str(torchrun), *flags, "-m", "hvdtrain", *SHORT, "--output-dir", "out"]
    finished = run_command(argv, DEADLINE_S, cwd=tmp_path)
    assert (tmp_path / "out" / "result.json").exists(), finished.tail()
    result = result_of(tmp_path / "out")
    assert (result["world_size"], result["steps"]) == (2, 3)
    assert "2 workers by torchrun" in finished.stdout, finished.tail()


def test_four_variables_are_enough(tmp_path: Path) -> None:
    port = free_port()
    secret = {"HVDTRAIN_SECRET": "correct horse"}
    outputs = ends(start(tmp_path, [by_hand(rank, 3, port, **secret) for rank in range(3)], *SHORT))
    assert [code for code, _ in outputs] == [outputs[0][0]] * 3, outputs
    result = result_of(tmp_path / "out")
    assert (result["world_size"], result["steps"]) == (3, 3)
    assert all("correct horse" not in path.read_text(errors="replace") for path in (tmp_path / "out").glob("*.*"))


SETS = """
import sys, threading, FRAMEWORK, hvdtrain.FRAMEWORK as hvd
for world in range(2):
    hvd.init(process_sets="dynamic")
    even = hvd.add_process_set(list(range(0, hvd.size(), 2)))
    if even.included():
        total = hvd.allreduce(FRAMEWORK.ones([1]), op=hvd.Sum, process_set=even, name="total")
        assert float(total[0]) == even.size(), total
    assert [thread.name for thread in threading.enumerate()].count("rendezvous") == (hvd.rank() == 0)
    sys.stdout.write(f"WORLD {world}\\n")
    if world == 0:
        hvd.barrier()  # who shuts down ends Horovod on all ranks
        hvd.shutdown()
hvd.add_process_set(list(range(1, hvd.size())))  # rank 0, who serves, may end before the others have formed it
"""


@pytest.mark.parametrize(("framework", "size"), [("torch", 3), ("tensorflow", 2)])
def test_process_sets_that_are_added_later_meet_too(framework: str, size: int, tmp_path: Path) -> None:
    """Rank 0 serves until the process ends, or starts again."""
    port, script = free_port(), SETS.replace("FRAMEWORK", framework)
    argv = with_interpreter(["python", "-c", script])
    started = [Spawned(argv, {**os.environ, **by_hand(rank, size, port)}, tmp_path) for rank in range(size)]
    finished = ends(started)
    assert [code for code, _ in finished] == [0] * size, finished
    assert all("WORLD 0" in output and "WORLD 1" in output for _, output in finished), finished


PLAIN = """
import os, horovod.torch as hvd
hvd.init()
print("rank", hvd.rank(), "of", hvd.size(), os.environ.get("MASTER_PORT"))
"""


def test_plain_horovod_in_a_slurm_step_is_connected_by_script_start(tmp_path: Path) -> None:
    """As the HINT says that such a script gets otherwise, which it does not get then."""
    write_start_up(tmp_path)
    step = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    step |= {"SLURM_STEP_NUM_NODES": "1", "SLURM_NODEID": "0"}
    script = f"import site; site.addsitedir({str(tmp_path)!r}){PLAIN}"
    argv = [sys.executable, "-P", "-m", "hvdtrain.comm.script_start", sys.executable, "-c", script]
    started = [
        Spawned(argv, {**os.environ, **step, "SLURM_PROCID": rank, "SLURM_LOCALID": rank}, tmp_path) for rank in "01"
    ]
    assert ends(started) == [(0, f"rank {rank} of 2 None\n") for rank in (0, 1)]


def test_a_taken_port_is_passed_over(tmp_path: Path) -> None:
    """In TensorFlow. Whoever listens there takes every connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        variables = [by_hand(rank, 2, port) for rank in (1, 0)]
        outputs = ends(start(tmp_path, variables, "--framework", "tensorflow", *SHORT))
    result = result_of(tmp_path / "out")
    assert (result["framework"], result["world_size"], result["steps"]) == ("tensorflow", 2, 3), outputs


def test_missing_ranks_are_named_on_every_rank(tmp_path: Path) -> None:
    port = free_port()
    variables = [by_hand(rank, 4, port, HVDTRAIN_START_TIMEOUT="12") for rank in (0, 2)]
    for code, output in ends(start(tmp_path, variables, *SHORT), 60):
        assert code == 1, output
        assert "Ranks 1, 3 did not come in time." in output, output
        assert "HINT: " in output
    assert not (tmp_path / "out").exists()


def test_a_rank_with_another_secret_is_not_let_in(tmp_path: Path) -> None:
    port = free_port()
    variables = [
        by_hand(rank, 2, port, HVDTRAIN_START_TIMEOUT="12", HVDTRAIN_SECRET=secret)
        for rank, secret in enumerate(["right", "wrong"])
    ]
    (code_0, output_0), (code_1, output_1) = ends(start(tmp_path, variables, *SHORT), 60)
    assert (code_0, code_1) == (1, 1)
    assert "Rank 1 did not come in time." in output_0, output_0
    assert "found no rank 0 at 127.0.0.1" in output_1, output_1
    assert "right" not in output_0.replace("right now", "")


@pytest.mark.parametrize("lacking", ["MASTER_ADDR", "MASTER_PORT"])
def test_what_is_not_said_is_asked_for(lacking: str, tmp_path: Path) -> None:
    variables = by_hand(0, 2, free_port())
    del variables[lacking]
    ((code, output),) = ends(start(tmp_path, [variables], *SHORT), 60)
    assert code == 2, output
    assert f"{lacking} is missing or wrong" in output, output
    assert output.count("HINT: ") == 1, output


def test_a_host_name_that_does_not_resolve(tmp_path: Path) -> None:
    variables = {**by_hand(1, 2, 29_500), "MASTER_ADDR": "no-such-host.invalid"}
    ((code, output),) = ends(start(tmp_path, [variables], *SHORT), 60)
    assert code == 1, output
    assert "The host name no-such-host.invalid does not resolve here" in output, output
    assert "HINT: " in output
