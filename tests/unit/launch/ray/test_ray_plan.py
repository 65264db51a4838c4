"""What `hvdtrain launch ray` asks of Ray and refuses, without a cluster; tests/parallel/test_launch_ray.py has one."""

from __future__ import annotations

import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hvdtrain.cli.main import main
from hvdtrain.launch.placed.seat_agent import serve

ROOT = Path(__file__).parents[4]
DEADLINE_S = 60.0

SHOWN = """\
# hvdtrain launch ray: 8 workers
#
# cluster: node1:6379
# placement group: 8 bundles of 8 CPU, 1 GPU, 0.5 NVMe, SPREAD; it waits for room for 60 s
# threads: 8 for each worker, as --cpus-per-worker says
# GPUs: workers of a node see all GPUs that Ray gives to them there; local rank 0, 1, ... uses one of these
# interpreter: Ray's on each node
# start: an actor on each node starts its workers, which meet at this machine; no ssh, no MPI
python -m hvdtrain train --max-steps 3
"""


def test_the_text_is_the_one_on_record(capsys: pytest.CaptureFixture[str]) -> None:
    needs = ["--cpus-per-worker", "8", "--gpus-per-worker", "1", "--resource", "NVMe=0.5"]
    where = ["--address", "node1:6379", "--placement", "SPREAD", "--wait", "60"]
    assert main(["launch", "ray", "-np", "8", *needs, *where, "--dry-run", "--", "train", "--max-steps", "3"]) == 0
    assert capsys.readouterr().out == SHOWN


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ([], "The number of workers is not known."),
        (["-np", "0"], "-np is 0."),
        (["-np", "2", "--cpus-per-worker", "0"], "A worker takes 0 CPUs and 0 GPUs."),
        (["-np", "2", "--gpus-per-worker", "-1"], "A worker takes 1 CPUs and -1 GPUs."),
        (["-np", "2", "--cpus-per-worker", "nan"], "A worker takes nan CPUs and 0 GPUs."),
        (["-np", "2", "--resource", "TPU"], "--resource is 'TPU'."),
        (["-np", "2", "--resource", "GPU=2"], "--resource is 'GPU=2'."),
        (["-np", "2", "--wait", "nan"], "--wait is nan."),
        (["-np", "2", "--min-workers", "1"], "has no --max-restarts"),
        (["-np", "2", "--pass-env", "NOT_SET_AT_ALL"], "NOT_SET_AT_ALL is to be passed on."),
        (["-np", "2", "--address", "http://node1"], "The address of the Ray cluster is 'http://node1'."),
    ],
)
def test_what_is_refused(flags: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "ray", *flags, "--dry-run"]) == 2
    said = capsys.readouterr()
    assert text in said.err
    assert said.err.count("HINT: ") == 1
    assert said.out == ""


def test_an_environment_without_ray_is_told_so() -> None:
    lines = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from hvdtrain.cli.main import main; "
    argv = [sys.executable, "-I", "-S", "-c", f"{lines} sys.exit(main(['launch', 'ray', '-np', '1']))"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 2, done.stderr
    assert "Ray is not installed here." in done.stderr
    assert "HINT: pip install 'hvdtrain[ray]'" in done.stderr


SEAT = """
import socket, sys, time
from hvdtrain.launch.placed.seat_agent import serve
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
serve(listener, sys.argv[1], 15.0, time.monotonic() + 60.0)
"""


def test_an_agent_serves_the_caller_that_knows_the_token() -> None:
    token = secrets.token_hex(16)
    argv = [sys.executable, "-c", SEAT, token]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT) as seat:
        assert seat.stdout is not None
        address = ("127.0.0.1", int(seat.stdout.readline()))
        for wrong in ("", "x" * 32):
            with socket.create_connection(address, DEADLINE_S) as stranger:
                stranger.sendall(wrong.encode())
                stranger.shutdown(socket.SHUT_WR)
                assert stranger.recv(100) == b""
        with socket.create_connection(address, DEADLINE_S) as launcher:
            launcher.sendall(token.encode())
            assert launcher.recv(17, socket.MSG_WAITALL) == b"\nHVDTRAIN-AGENT-1"
        assert seat.wait(DEADLINE_S) == 0


def test_nobody_calls_an_agent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serve(listener, secrets.token_hex(16), 15.0, time.monotonic() + 0.1)
