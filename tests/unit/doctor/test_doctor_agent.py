"""The agent as a process of its own: it answers, refuses, ends with its asker, and leaves nothing running."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from hvdtrain.doctor.examination import _options
from hvdtrain.doctor.findings import DoctorRequest
from hvdtrain.doctor.measured_allreduce import _output, _require_success
from hvdtrain.launch.hosts.host import Host
from hvdtrain.launch.processes.worker import WorkerExit
from hvdtrain.launch.ssh.agent_client import RemoteWorkerGroup, ask_at_once
from hvdtrain.launch.ssh.command import SshOptions, agent_argv, ssh_argv
from hvdtrain.launch.ssh.line import ProgramLine
from hvdtrain.launch.ssh.link import AgentError, HostLink
from hvdtrain.launch.supervisor.worker_state import WorkerState

START_S = 30.0
HERE = DoctorRequest(hosts=(Host("localhost", 2),))
COMMAND = agent_argv(_options(HERE))


@pytest.fixture
def agent() -> Iterator[HostLink]:
    with running() as agent:
        yield agent


@contextmanager
def running(command: Sequence[str] = COMMAND) -> Iterator[HostLink]:
    link = HostLink("here", ProgramLine(command), START_S, 15.0)
    try:
        end = time.monotonic() + START_S
        while link.hello is None:
            assert not link.lost
            assert time.monotonic() < end
            time.sleep(0.01)
        yield link
    finally:
        link.close(START_S)


def test_it_tells_the_time_and_goes_on_after_a_refusal(agent: HostLink) -> None:
    assert abs(agent.ask("clock", 10.0) - time.time()) < 5
    with pytest.raises(AgentError, match="is not a token"):
        agent.ask("mark", 10.0, folder="/", token="../../etc/x")
    with pytest.raises(AgentError, match="Cannot assign"):
        agent.ask("listen", 10.0, address="192.0.2.1", token="x", seconds=1.0)
    assert agent.ask("clock", 10.0) > 0


def test_token_files_are_seen_by_others_and_removed(agent: HostLink, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for number in (0, 1):
        agent.ask("mark", 10.0, folder=str(tmp_path), token=f"{'ab' * 8}-{number}")
    agent.ask("mark", 10.0, folder=str(other), token=f"{'ab' * 8}-2")
    look = {"token": f"{'ab' * 8}-0", "wanted": 3, "seconds": 0.0}
    assert agent.ask("look", 10.0, folder=str(tmp_path), **look) == [0, 1]
    assert agent.ask("look", 10.0, folder=str(other), **look) == [2]
    for number in (0, 1):
        agent.ask("unmark", 10.0, folder=str(tmp_path), token=f"{'ab' * 8}-{number}")
    assert list(tmp_path.iterdir()) == [other]
    with pytest.raises(AgentError, match="No such file"):
        agent.ask("mark", 10.0, folder=str(tmp_path / "none"), token=f"{'ab' * 8}-0")
    with pytest.raises(AgentError, match="in which nobody makes files"):
        agent.ask("mark", 10.0, folder="/proc", token=f"{'ab' * 8}-0")


def test_what_a_shell_prints_first_is_kept_apart() -> None:
    shell = f'echo Welcome; echo; exec "{sys.executable}" -m hvdtrain.doctor.host_agent 15'
    with running(["sh", "-c", shell]) as agent:
        assert agent.greeting == "Welcome"
        assert agent.ask("clock", 10.0) > 0


def test_an_answer_that_does_not_come_is_an_error_and_never_taken_for_the_next(agent: HostLink) -> None:
    with pytest.raises(AgentError, match="did not answer in time"):
        agent.ask("received", 0.2, stream="0-1", seconds=1.0)
    with pytest.raises(AgentError, match="nothing arrived within 2 s"):  # after the late answer to the first question
        agent.ask("received", 10.0, stream="0-1", seconds=2.0)


def test_many_are_asked_at_once(agent: HostLink) -> None:
    with running() as other:
        asked = [(agent, "mark", {"folder": "/", "token": ""}), (other, "clock", {})]
        refused, told = ask_at_once(asked, 10.0)
    assert isinstance(refused, AgentError)
    assert told > 0


def test_token_files_go_with_the_agent(tmp_path: Path) -> None:
    with running() as agent:
        agent.ask("mark", 10.0, folder=str(tmp_path), token=f"{'ab' * 8}-0")
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


def processes(mark: str) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue  # ended meanwhile
    return found


def wait_until_gone(mark: str, seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while processes(mark):
        assert time.monotonic() < end, "a worker outlived its agent"
        time.sleep(0.05)


def measured(agent: HostLink, command: list[str], ranks: list[int], seconds: float = 60.0, **variables: str) -> str:
    order = {"token": secrets.token_hex(8), "command": command, "ranks": ranks, "variables": variables}
    group = RemoteWorkerGroup(agent, ranks, order)
    return _output([group], {rank: WorkerState(rank, "here") for rank in ranks}, seconds)


def test_workers_run_with_their_places(agent: HostLink) -> None:
    variables = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    assert measured(agent, ["env", "--all-ranks"], [0, 1], **variables).startswith("rank 0 of 3, local rank 0 of 2")


def test_a_failed_worker_is_told_with_its_words(agent: HostLink) -> None:
    with pytest.raises(AgentError, match=r"rank 0 on here did not end well \(exit code 2\): .*no-such"):
        measured(agent, ["no-such"], [0])


def test_a_killed_worker_is_named_rather_than_those_that_wait_for_it() -> None:
    killed = WorkerExit(-9)
    workers = [WorkerState(0, "here"), WorkerState(1, "there", end=killed)]
    with pytest.raises(AgentError, match=r"^rank 1 on there did not end well \(exit code -9\): it has said nothing$"):
        _require_success(workers, 60.0)


def test_workers_end_at_the_deadline_and_with_whoever_asked(tmp_path: Path) -> None:
    mark = f"HVDTRAIN_TEST_AGENT={os.getpid()}-{time.monotonic_ns()}"
    name, _, value = mark.partition("=")
    with running() as agent:
        with pytest.raises(AgentError, match=r"^rank 0 on here was still running after 0.5 s: it has said nothing$"):
            measured(agent, ["env"], [0, 1], 0.5, **{name: value}, **_asleep(tmp_path))
        wait_until_gone(mark)
        order = {"command": ["env"], "ranks": [0], "variables": {name: value, **_asleep(tmp_path)}}
        RemoteWorkerGroup(agent, [0], {"token": secrets.token_hex(8), **order})
        end = time.monotonic() + START_S
        while not processes(mark):
            assert time.monotonic() < end
            time.sleep(0.02)
    assert not processes(mark)


def _asleep(folder: Path) -> dict[str, str]:
    """Variables that let every Python sleep as it starts: a worker that hangs."""
    (folder / "sitecustomize.py").write_text("import time; time.sleep(600)\n")
    return {"PYTHONPATH": str(folder)}


def test_words_for_the_remote_shell_arrive_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "it's here; touch bad"
    folder.mkdir()
    python = folder / "my $(touch bad) python"
    python.write_text('#!/bin/sh\nprintf "%s|" "$PWD" "$PYTHONPATH" "$@"\n')
    python.chmod(0o755)
    options = SshOptions(str(python), 2222, agent="agent", folder=str(folder), python_path="/a b:/c'd")
    argv = ssh_argv(options, "host2")
    assert argv[-5:-1] == ("-p", "2222", "--", "host2")
    done = subprocess.run(["sh", "-c", argv[-1]], capture_output=True, text=True, cwd=tmp_path, timeout=60, check=True)
    assert done.stdout.split("|") == [str(folder), "/a b:/c'd", "-m", "agent", "15", ""]
    assert not list(tmp_path.rglob("bad"))
