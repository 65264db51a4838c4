"""The agent and the link to it, without ssh between: who falls silent, talks nonsense, or does not read."""

from __future__ import annotations

import os
import secrets
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from hvdtrain.errors import UsageError
from hvdtrain.launch.hosts.host import Host, assign_ranks
from hvdtrain.launch.processes.orphan_reaper import processes_of
from hvdtrain.launch.ssh.command import SshOptions, agent_argv
from hvdtrain.launch.ssh.frames import Frame, FrameReader
from hvdtrain.launch.ssh.line import ProgramLine
from hvdtrain.launch.ssh.link import HostLink

DEADLINE_S = 60.0
ROOT = Path(__file__).parents[4]


def order(command: list[str], token: str) -> dict[str, Any]:
    return {
        "launcher": "127.0.0.1",
        "nics": [],
        "folder": str(ROOT),
        "command": command,
        "rendezvous": {},
        "restarts": 0,
        "cause": "",
        "token": token,
        "variables": {},
        "places": [asdict(place) for place in assign_ranks([Host("here", 1)], 1)],
        "numbers": [0],
        "world": None,
    }


class Peer:
    """An agent, and this test as its launcher."""

    def __init__(self, seconds: float) -> None:
        self.process = subprocess.Popen(
            agent_argv(SshOptions(sys.executable, link_seconds=seconds)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in, self._out = self.process.stdin, self.process.stdout
        self._reader = FrameReader(skips_greeting=True)

    def send(self, kind: str, **fields: Any) -> None:
        self._in.write(Frame(kind, fields).encode())

    def until(self, wanted: str) -> Frame:
        """Read up to the first frame of that kind."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            data = os.read(self._out.fileno(), 65536)
            assert data, "the agent has ended"
            for frame in self._reader.feed(data):
                if frame.kind == wanted:
                    return frame
        raise AssertionError(f"no frame {wanted}")


@pytest.fixture
def peer() -> Iterator[Callable[[float], Peer]]:
    peers: list[Peer] = []

    def start(seconds: float) -> Peer:
        peers.append(Peer(seconds))
        return peers[-1]

    yield start
    for each in peers:
        each._in.close()
        each.process.wait(DEADLINE_S)
        each._out.close()


SLEEP = [sys.executable, "-c", "import time; time.sleep(300)"]


def test_an_agent_whose_heartbeats_are_not_answered_ends_with_its_workers(peer: Callable[[float], Peer]) -> None:
    token = secrets.token_hex(8)
    agent = peer(2.0)
    agent.until("hello")
    agent.send("start", **order(SLEEP, token))
    assert agent.until("started").fields["rank"] == 0
    assert list(processes_of(token))
    stale = agent.until("heartbeat").fields["sent"]
    end = time.monotonic() + 2.0 + DEADLINE_S
    while agent.process.poll() is None:
        assert time.monotonic() < end, "it lives on answers to an old beat"
        with suppress(BrokenPipeError):
            agent.send("heartbeat", sent=stale)
        os.read(agent._out.fileno(), 65536)
    assert list(processes_of(token)) == []


def test_a_launcher_that_does_not_read_makes_workers_wait(peer: Callable[[float], Peer]) -> None:
    token = secrets.token_hex(8)
    agent = peer(DEADLINE_S)
    agent.until("hello")
    agent.send("start", **order([sys.executable, "-c", "while True: print('x' * 1000)"], token))
    got = 0
    with selectors.DefaultSelector() as selector:
        selector.register(agent._out, selectors.EVENT_READ)
        while selector.select(1.0):
            for frame in agent._reader.feed(os.read(agent._out.fileno(), 65536)):
                got += len(frame.body)
    assert 2**19 < got < 2**20
    agent.send("read", bytes=got)
    assert agent.until("output").body
    agent.send("kill")
    assert agent.until("ended").fields["by_us"] is True
    agent.send("ask", do="sweep", number=1, arguments={})
    assert agent.until("answer").fields == {"number": 1, "ok": []}


@contextmanager
def linked(argv: list[str], hello_seconds: float = DEADLINE_S, link_seconds: float = DEADLINE_S) -> Iterator[HostLink]:
    link = HostLink("b", ProgramLine(argv), hello_seconds, link_seconds)
    try:
        yield link
    finally:
        link.close(DEADLINE_S)


def await_end(link: HostLink) -> list[Frame]:
    frames: list[Frame] = []
    with selectors.DefaultSelector() as selector:
        selector.register(link, selectors.EVENT_READ)
        while not any(frame.kind == "lost" for frame in frames):
            assert selector.select(DEADLINE_S)
            frames += link.take()
    return frames


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("exit 3", "the connection to its agent ended (exit code 3)"),
        ("echo oh no >&2; exit 255", "the connection to its agent ended (exit code 255); its last words: oh no"),
        ("exec sleep 60", "its agent did not start within 1 s"),
        ("exec yes", "it wrote b'y\\ny\\n"),
    ],
)
def test_why_there_is_no_agent(lines: str, why: str) -> None:
    with linked(["sh", "-c", lines], hello_seconds=1.0) as link:
        frames = await_end(link)
        assert [frame.kind for frame in frames] == ["lost"]
        assert link.lost.startswith(why)


def test_a_machine_without_ssh() -> None:
    with pytest.raises(UsageError, match="no-such-ssh cannot be started: No such file"):
        HostLink("b", ProgramLine(["no-such-ssh"]), 1.0, 1.0)


def test_an_agent_that_falls_silent_is_lost_in_time() -> None:
    hello = "import sys, time; from hvdtrain.launch.ssh.frames import *; "
    hello += (
        "sys.stdout.buffer.write(b'Welcome!' + PREAMBLE + Frame('hello').encode()); sys.stdout.flush(); time.sleep(60)"
    )
    with linked([sys.executable, "-c", hello], link_seconds=1.0) as link:
        assert [frame.kind for frame in await_end(link)] == ["hello", "lost"]
        assert link.lost == "nothing was heard from it for 1 s"


def test_answers_keep_an_agent_alive_while_nobody_takes_its_words() -> None:
    with linked(list(agent_argv(SshOptions(sys.executable, link_seconds=2.0))), link_seconds=2.0) as link:
        with selectors.DefaultSelector() as selector:
            selector.register(link, selectors.EVENT_READ)
            assert selector.select(DEADLINE_S)
            assert [frame.kind for frame in link.take()] == ["hello"]
            assert selector.select(5.0) == []  # longer than both ends wait
        assert not link.lost
        assert link.called_from == os.environ.get("SSH_CONNECTION", "").partition(" ")[0]


def test_the_agent_needs_nothing_but_the_standard_library_and_our_light_modules() -> None:
    lines = "import sys, hvdtrain.launch.ssh.agent; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-P", "-c", lines], capture_output=True, text=True, check=True, timeout=60)
    heavy = {"torch", "tensorflow", "keras", "horovod", "numpy", "yaml", "psutil", "data_sharding", "rich"}
    assert heavy.isdisjoint(done.stdout.split())
