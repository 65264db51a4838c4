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
from hvdtrain.errors import UsageError
from hvdtrain.launch.placed.cluster import PlacedCluster, System
from hvdtrain.launch.placed.seat_agent import serve
from hvdtrain.launch.supervisor.signals import SignalInbox

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


def test_the_address_in_the_environment_is_checked_as_that_of_the_option(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://node1:8265")
    for option in ([], ["--address", "auto"]):
        assert main(["launch", "ray", "-np", "1", *option, "--dry-run"]) == 2
        said = capsys.readouterr().err
        assert "The address of the Ray cluster is 'http://node1:8265', by the variable RAY_ADDRESS." in said
        assert "HINT: give --address as `ray start --head` printed it" in said
    assert main(["launch", "ray", "-np", "1", "--address", "node1:6379", "--dry-run"]) == 0
    monkeypatch.setenv("RAY_ADDRESS", "local")  # for Ray: a cluster that is started here
    assert main(["launch", "ray", "-np", "1", "--dry-run"]) == 0


BROKER = """
import sys
def connect():
    print("a warning", file=sys.stderr)
    raise ValueError("Ray cannot be reached:\\n  1. It is not there.\\n2. Start it.")
connect()
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BROKER, "ValueError: Ray cannot be reached: 1. It is not there. 2. Start it."),
        ("import sys; sys.exit('one\\n two')", "two."),
    ],
)
def test_the_last_words_of_what_talks_to_a_cluster_begin_with_the_cause(
    text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lost_broker.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    system = System("Ray", "lost_broker", "look.", "")
    with (
        SignalInbox() as inbox,
        PlacedCluster(system, {}, 15.0, inbox.wake, print) as cluster,
        pytest.raises(UsageError) as error,
    ):
        cluster.await_hosts(DEADLINE_S, inbox)
    assert error.value.fact.endswith(f"ended with exit code 1; its last words: {words}")


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
