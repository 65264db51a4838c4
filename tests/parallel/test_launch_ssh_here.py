"""`hvdtrain launch ssh` on this machine: with agents, without sshd. tests/cluster has several hosts."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

from support.processes import python_path, run_command
from support.runs import topology_of_run

from hvdtrain.launch.processes.orphan_reaper import JOB_TOKEN_VARIABLE, processes_of

DEADLINE_S = 120.0
LINK_S = 2.0


def test_workers_of_an_agent_train(tmp_path: Path) -> None:
    command = ["--", "train", "--max-steps", "2", "--output-dir", "out"]
    argv = [sys.executable, "-m", "hvdtrain", "launch", "ssh", "-H", "localhost:2", *command]
    finished = run_command(argv, DEADLINE_S, cwd=tmp_path)
    assert finished.returncode in (0, 75), finished.tail()
    assert ", 2 workers by hvdtrain launch on 1 node" in finished.stdout, finished.tail()
    topology = topology_of_run(tmp_path / "out")
    assert (topology["size"], topology["local_size"], topology["num_nodes"]) == (2, 2, 1)


def write_interpreter(path: Path, lines: str) -> Path:
    """A program for --python: agents are real, workers run `lines`."""
    agent = f'*hvdtrain.launch.ssh.agent*) exec {sys.executable} "$@" ;;'
    path.write_text(f'#!/bin/sh\ncase "$*" in {agent} *) exec {sys.executable} -c "{lines}" "$@" ;; esac\n')
    path.chmod(0o755)
    return path


def test_a_terminal_that_stands_still_stops_workers_and_does_not_end_them(tmp_path: Path) -> None:
    """Somebody pages through the output for longer than silence may last."""
    interpreter = write_interpreter(tmp_path / "python", "for i in range(30_000): print(i, 'x' * 100)")
    flags = ["-H", "localhost:1", "--python", str(interpreter), "--link-timeout", str(LINK_S)]
    process = subprocess.Popen(
        [sys.executable, "-m", "hvdtrain", "launch", "ssh", *flags],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    first = os.read(process.stdout.fileno(), 10)
    time.sleep(3 * LINK_S)  # what is tested is that nothing happens meanwhile
    with process.stdout as rest:
        said = first + rest.read()
    assert process.wait(DEADLINE_S) == 0
    assert said.decode().splitlines() == [f"{i} {'x' * 100}" for i in range(30_000)]


STRANGE_AGENT = """
import os, sys, time
from hvdtrain.launch.ssh.frames import PREAMBLE, Frame
def say(data):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
say(PREAMBLE + Frame("hello", {"name": "here", "cores": 1, "launcher": ""}).encode())
while not os.path.exists("ready"):
    time.sleep(0.02)
say(b"".join(Frame("started", {"rank": rank, "process": "many"}).encode() for rank in (0, 1)))
time.sleep(300)
"""


def test_an_error_of_the_launcher_itself_ends_the_workers_of_all_hosts_and_says_so(tmp_path: Path) -> None:
    """One host's agent talks the protocol, and says what none should; the other host's worker runs meanwhile."""
    (tmp_path / "strange.py").write_text(STRANGE_AGENT)
    interpreter = tmp_path / "python"
    worker = f"{sys.executable} -c \"import os, time; os.mkdir('ready'); time.sleep(300)\""
    agents = f'if mkdir first 2>/dev/null; then exec {sys.executable} "$@"; else exec {sys.executable} strange.py; fi'
    interpreter.write_text(
        f'#!/bin/sh\ncase "$*" in *hvdtrain.launch.ssh.agent*) {agents} ;; *) exec {worker} ;; esac\n'
    )
    interpreter.chmod(0o755)
    flags = ["-H", "localhost:1,127.0.0.1:1", "--python", str(interpreter), "--max-restarts", "3"]
    mark = secrets.token_hex(8)
    env = {JOB_TOKEN_VARIABLE: mark, **python_path(Path(__file__).parents[2])}
    finished = run_command([sys.executable, "-m", "hvdtrain", "launch", "ssh", *flags], DEADLINE_S, env, tmp_path)
    assert (finished.returncode, list(processes_of(mark))) == (1, []), finished.tail()
    assert finished.stderr.count("The launcher itself failed") == 1, finished.tail()
    assert "ValueError: invalid literal for int() with base 10: 'many'" in finished.stderr, finished.tail()
    assert "restart 1 of 3" not in finished.stderr, finished.tail()
