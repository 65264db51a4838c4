"""An elastic job, seen from outside while it runs: its ports, its processes, and where its secrets can be read."""

from __future__ import annotations

import base64
import http.client
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from listening import listening
from memory import grown_mb
from support.jobs import ENDLESS, WORKERS, Job
from support.process_table import command_of, environ_of
from support.processes import python_path
from trap import Trap

pytestmark = pytest.mark.timeout(900)

WATCHED = Path(__file__).parent / "watched"
CANARY = "canary-5f1d0b"
SECRETS = {"AWS_SECRET_ACCESS_KEY": CANARY, "HF_TOKEN": CANARY, "HVDTRAIN_SECRET": CANARY, "MY_OWN_THING": CANARY}
GIANT_MB = 64


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Two workers that train without an end, after one was lost and another one has joined."""
    folder = tmp_path_factory.mktemp("job")
    with start(folder) as running:
        running.await_lines()
        os.kill(running.workers()[0], signal.SIGKILL)
        running.await_that(lambda: "of which 1 joined" in running.output, "new worker")
        running.await_lines()
        yield running
        running.stop()


def start(folder: Path) -> Job:
    (folder / "watched").mkdir()
    env = {"WATCH_FOLDER": str(folder / "watched"), **python_path(WATCHED, WORKERS), **SECRETS}
    flags = ["-np", "2", "--min-workers", "1", "--max-restarts", "3"]
    return Job(folder, flags, ENDLESS, env, "fresh")


def events(folder: Path, name: str) -> list[list[str]]:
    """What was noted of one kind: what it was about, and the files of the code that did it."""
    lines = [line.split("\t") for file in folder.iterdir() for line in file.read_text().splitlines()]
    return [line[1:] for line in lines if line[0] == name]


UNGUARDED = """
import sys
from horovod.runner.http.http_server import KVStoreServer
print(KVStoreServer(verbose=0).start_server(), flush=True)
sys.stdin.read()
"""
"""Horovod's server of functions (CVE-2024-10190, CVE-2026-31234), as `horovod.run` starts it."""


@pytest.fixture
def horovods_server(tmp_path: Path) -> Iterator[tuple[int, int, Path]]:
    """Its process, its port, and the folder with what was noted of it."""
    env = {**os.environ, "WATCH_FOLDER": str(tmp_path / "watched"), "PYTHONPATH": str(WATCHED)}
    (tmp_path / "watched").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", UNGUARDED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as process:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline()), tmp_path / "watched"
        process.kill()


def put(address: str, port: int, path: str, body: bytes) -> int:
    """The status that a server answers."""
    connection = http.client.HTTPConnection(address, port, timeout=60)
    try:
        connection.request("PUT", path, body)
        return connection.getresponse().status
    finally:
        connection.close()


def test_horovods_own_servers_are_never_started(job: Job, horovods_server: tuple[int, int, Path], trap: Trap) -> None:
    """Who reaches Horovod's server puts a function there, which a worker then unpickles."""
    process, port, noted = horovods_server
    assert put("127.0.0.1", port, "/runfunc/func", base64.b64encode(trap.pickled)) == 200
    taker = [sys.executable, "-m", "horovod.runner.run_task", "127.0.0.1", str(port)]
    trap.require_sprung_by(lambda: subprocess.run(taker, capture_output=True, timeout=240, check=False))
    assert listening([process]) == {(process, "0.0.0.0", port)}, "on every interface of the machine"
    (bound,) = [files for _, *files in events(noted, "socket.bind") if "horovod" in " ".join(files)]
    assert any("horovod/runner" in file for file in bound)

    watched = job.folder / "watched"
    assert len(list(watched.iterdir())) >= 1, "what the job does is noted"
    assert not [files for _, *files in events(watched, "socket.bind") if "horovod/runner" in " ".join(files)]
    commands = b" ".join(map(command_of, job.processes())).replace(b"\0", b" ").decode()
    assert "hvdtrain" in commands
    assert not re.search(r"horovod\.runner|horovodrun|run_task", commands)
    assert events(watched, "pickle.find_class") == [], "in none of its processes anything was unpickled"


def test_one_port_is_open_and_only_to_this_machine(job: Job, horovods_server: tuple[int, int, Path]) -> None:
    """The launcher's, at which workers meet."""
    (open_to_all,) = listening([horovods_server[0]])
    assert open_to_all[1] == "0.0.0.0"
    (place,) = listening(job.processes())
    assert place[:2] == (job.process.pid, "127.0.0.1")
    assert {what for what, *_ in events(job.folder / "watched", "socket.bind")} == {"('127.0.0.1', 0)"}


def meeting_of(job: Job) -> tuple[int, str]:
    """The port of the server, and the token that a worker was given when it was started, for an earlier world."""
    (place,) = listening(job.processes())
    told = environ_of(job.workers()[0]).decode().partition("HOROVOD_GLOO_RENDEZVOUS_ADDR=")[2].partition("\0")[0]
    return place[2], told.partition("/")[2]


def answer_to(port: int, data: bytes) -> bytes:
    """All that comes back; nothing where the connection is reset."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        with suppress(ConnectionError):
            connection.sendall(data)
        answer = b""
        with suppress(ConnectionError):
            while more := connection.recv(4096):
                answer += more
        return answer


def requests(port: int, trap: Trap, token: str) -> dict[str, tuple[bytes, bytes]]:
    """Attack → what is sent, and how the answer begins."""
    head = f"PUT /{token}:{port}/global/rank_0 HTTP/1.1\r\n"
    return {
        "a pickle": (trap.pickled, b""),
        "a function for Horovod": (
            f"PUT /runfunc/func HTTP/1.1\r\nContent-Length: {len(trap.pickled)}\r\n\r\n".encode() + trap.pickled,
            b"HTTP/1.1 400 ",
        ),
        "another token": (f"PUT /guess:{port}/global/rank_0 HTTP/1.1\r\n\r\n".encode(), b"HTTP/1.1 403 "),
        "a token of an earlier world": (f"{head}Content-Length: 1\r\n\r\nx".encode(), b"HTTP/1.1 403 "),
        "a giant length": (f"{head}Content-Length: 1{'0' * 11}\r\n\r\n".encode() + bytes(2**20), b"HTTP/1.1 403 "),
        "a line without an end": (b"PUT /" + bytes(GIANT_MB * 2**20), b""),
        "lines without an end": (head.encode() + bytes(GIANT_MB * 2**20), b"HTTP/1.1 403 "),
    }


def test_strangers_at_the_port_are_refused_and_take_no_memory(
    job: Job, horovods_server: tuple[int, int, Path], trap: Trap
) -> None:
    """Horovod's server takes everything, again and again, and keeps it in memory."""
    unguarded, open_port, _ = horovods_server

    def fill() -> None:
        for number in range(4):
            assert put("127.0.0.1", open_port, f"/global/{number}", bytes(GIANT_MB * 2**18)) == 200

    assert grown_mb(unguarded, fill) > GIANT_MB / 2
    port, old_token = meeting_of(job)

    def attack() -> None:
        for what, (data, begins) in requests(port, trap, old_token).items():
            answer = answer_to(port, data)
            assert answer.startswith(begins), (what, answer[:80])
            assert b" 200 " not in answer, what

    assert grown_mb(job.process.pid, attack) < GIANT_MB / 2
    trap.require_sprung_by(lambda: pickle.loads(trap.pickled))
    trap.require_unsprung()
    job.await_lines()


def readable_by_others(job: Job) -> str:
    """Command lines of all processes of this machine, and whatever the job has written."""
    processes = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    texts = [job.output, *(command_of(process).replace(b"\0", b" ").decode("latin-1") for process in processes)]
    for folder, _, names in os.walk(job.folder):  # which passes over folders that go meanwhile: old checkpoints do
        for name in names:
            with suppress(FileNotFoundError):
                texts.append(Path(folder, name).read_bytes().decode("latin-1"))
    return "\n".join(texts)


def test_secrets_are_in_no_command_line_and_no_file(job: Job) -> None:
    """A variable in a command line is seen by all who may list processes."""
    careless = ["env", f"HF_TOKEN={CANARY}", "sleep", "300"]
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", *careless]) as shown:
        try:
            job.await_that(lambda: CANARY.encode() in command_of(shown.pid), "the canary in a command line")
            assert CANARY in readable_by_others(job)
        finally:
            shown.kill()
    _, token = meeting_of(job)
    variables = environ_of(job.workers()[0])
    assert CANARY.encode() in variables, "workers have the variables of whoever starts them"
    job_token = re.search(rb"HVDTRAIN_JOB=(\w+)", variables)
    assert job_token is not None
    everything = readable_by_others(job)
    assert '"event"' in everything, "the run's files are looked at"
    for secret in (CANARY, token, job_token[1].decode()):
        assert secret not in everything
