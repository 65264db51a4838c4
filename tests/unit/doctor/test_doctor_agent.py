"""The agent as a process of its own: it answers, refuses, ends with its asker, and leaves nothing running."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvdtrain.doctor.agent_client import Agent, AgentError, ask_at_once, local_command, ssh_command

START_S = 30.0


@pytest.fixture
def agent() -> Iterator[Agent]:
    agent = started(local_command(sys.executable))
    yield agent
    agent.close()


def started(command: list[str], seconds: float = START_S) -> Agent:
    agent = Agent("here", command)
    try:
        agent.greet(seconds)
    except AgentError:
        agent.close()
        raise
    return agent


def test_it_tells_the_time_and_goes_on_after_a_refusal(agent: Agent) -> None:
    assert abs(agent.ask("clock", 10.0) - time.time()) < 5
    with pytest.raises(AgentError, match="is not a token"):
        agent.ask("mark", 10.0, folder="/", token="../../etc/x", step="make")
    with pytest.raises(AgentError, match="Cannot assign"):
        agent.ask("listen", 10.0, address="192.0.2.1", token="x", seconds=1.0)
    assert agent.ask("clock", 10.0) > 0


def test_token_files_are_seen_by_others_and_removed(agent: Agent, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for number in (0, 1):
        agent.ask("mark", 10.0, folder=str(tmp_path), token=f"{'ab' * 8}-{number}", step="make")
    agent.ask("mark", 10.0, folder=str(other), token=f"{'ab' * 8}-2", step="make")
    look = {"token": f"{'ab' * 8}-0", "step": "look", "wanted": 3, "seconds": 0.0}
    assert agent.ask("mark", 10.0, folder=str(tmp_path), **look) == [0, 1]
    assert agent.ask("mark", 10.0, folder=str(other), **look) == [2]
    for number in (0, 1):
        agent.ask("mark", 10.0, folder=str(tmp_path), token=f"{'ab' * 8}-{number}", step="remove")
    assert list(tmp_path.iterdir()) == [other]
    with pytest.raises(AgentError, match="No such file"):
        agent.ask("mark", 10.0, folder=str(tmp_path / "none"), token=f"{'ab' * 8}-0", step="make")
    with pytest.raises(AgentError, match="in which nobody makes files"):
        agent.ask("mark", 10.0, folder="/proc", token=f"{'ab' * 8}-0", step="make")


def test_what_a_shell_prints_first_is_kept_apart() -> None:
    command = ["sh", "-c", f'echo Welcome; echo; exec "{sys.executable}" -m hvdtrain.doctor.agent']
    agent = started(command)
    try:
        assert agent.greeting == ["Welcome", ""]
        assert agent.ask("clock", 10.0) > 0
    finally:
        agent.close()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["sh", "-c", "echo ssh: no route >&2; exit 255"], "ssh: no route"),
        (["sh", "-c", "exit 3"], "exit code 3"),
        (["/no/such/ssh"], "cannot be started: No such file"),
        (["sleep", "30"], "did not answer in time"),
        (["yes"], "prints without end"),
    ],
)
def test_what_does_not_start_is_an_error_in_time(command: list[str], said: str) -> None:
    begin = time.monotonic()
    with pytest.raises(AgentError, match=said):
        started(command, 1.0)
    assert time.monotonic() - begin < 20


def test_an_answer_that_does_not_come_is_an_error_and_never_taken_for_the_next(agent: Agent) -> None:
    with pytest.raises(AgentError, match="did not answer in time"):
        agent.ask("received", 0.2, stream="0-1", seconds=1.0)
    with pytest.raises(AgentError, match="did not answer in time"):
        agent.ask("clock", 10.0)


def test_many_are_asked_at_once(agent: Agent) -> None:
    other = started(local_command(sys.executable))
    try:
        asked = [(agent, "mark", {"folder": "/", "token": "", "step": ""}), (other, "clock", {})]
        refused, told = ask_at_once(asked, 10.0)
    finally:
        other.close()
    assert isinstance(refused, AgentError)
    assert told > 0


def test_token_files_go_with_the_agent(tmp_path: Path) -> None:
    agent = started(local_command(sys.executable))
    agent.ask("mark", 10.0, folder=str(tmp_path), token=f"{'ab' * 8}-0", step="make")
    assert len(list(tmp_path.iterdir())) == 1
    agent.close()
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


def wait_until_gone(mark: str, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while processes(mark):
        assert time.monotonic() < end, "a worker outlived its agent"
        time.sleep(0.05)


def test_workers_run_with_their_places(agent: Agent) -> None:
    variables = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    command = ["env", "--all-ranks"]
    done = agent.ask("workers", 90.0, command=command, ranks=[1, 2], variables=variables, seconds=60.0)
    assert done["codes"] == {"1": 0, "2": 0}, done
    assert not done["timed_out"]
    assert done["stdout"].startswith("rank 1 of 3, local rank 0 of 2")


def test_a_failed_worker_is_told_with_its_words(agent: Agent) -> None:
    done = agent.ask("workers", 90.0, command=["no-such"], ranks=[0], variables={}, seconds=60.0)
    assert done["codes"] == {"0": 2}
    assert "no-such" in done["stderr"]["0"]


def test_workers_end_at_the_deadline_and_with_whoever_asked(tmp_path: Path) -> None:
    mark = f"HVDTRAIN_TEST_AGENT={os.getpid()}-{time.monotonic_ns()}"
    name, _, value = mark.partition("=")
    agent = started(local_command(sys.executable))
    sleeping = {"command": ["env"], "ranks": [0, 1], "variables": {name: value, **_asleep(tmp_path)}}
    try:
        done = agent.ask("workers", 60.0, **sleeping, seconds=0.5)
        assert done["timed_out"]
        assert set(done["codes"].values()) == {-9}
        wait_until_gone(mark)
        with pytest.raises(AgentError, match="in time"):
            agent.ask("workers", 2.0, **sleeping, seconds=600.0)
        assert processes(mark)
    finally:
        agent.close()
    wait_until_gone(mark)


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
    argv = ssh_command("host2", 2222, str(python), str(folder), "/a b:/c'd")
    assert argv[-5:-1] == ["-p", "2222", "--", "host2"]
    done = subprocess.run(["sh", "-c", argv[-1]], capture_output=True, text=True, cwd=tmp_path, timeout=10, check=True)
    assert done.stdout.split("|") == [str(folder), "/a b:/c'd", "-m", "hvdtrain.doctor.agent", ""]
    assert not list(tmp_path.rglob("bad"))
