"""The socket between a worker of an elastic job and its launcher, whose end is the test's."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from hvdtrain.errors import HvdtrainError
from hvdtrain.world_channel import CHANGE, THREADS_VARIABLE, WORLD_VARIABLE, LineReader, WorldChannel, line_of

DEADLINE_S = 60.0


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[socket.socket, WorldChannel]]:
    """The launcher's end, and the worker's, which is in world 1."""
    monkeypatch.setenv(WORLD_VARIABLE, "1")
    own, workers = socket.socketpair()
    own.settimeout(DEADLINE_S)
    channel = WorldChannel(workers.detach())
    with own:
        yield own, channel
    channel._socket.close()


def heard(launcher: socket.socket, lines: int) -> list[dict[str, object]]:
    reader, found = LineReader(), []
    while len(found) < lines:
        found += reader.feed(launcher.recv(4096))
    return found


def test_that_it_trains_is_told_once_in_each_world(
    ends: tuple[socket.socket, WorldChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher, channel = ends
    assert (channel.change(), channel.change()) == (None, None)
    monkeypatch.setenv(WORLD_VARIABLE, "2")
    monkeypatch.setenv(THREADS_VARIABLE, "4")
    channel.change()
    assert heard(launcher, 2) == [{"trains": 1, "threads": None}, {"trains": 2, "threads": "4"}]


def test_a_change_leads_to_the_variables_of_the_next_world(ends: tuple[socket.socket, WorldChannel]) -> None:
    launcher, channel = ends
    over = threading.Event()
    channel.when_over = over.set
    launcher.sendall(line_of({"over": 7}) + line_of({"over": 1}) + line_of({"change": True}))
    assert over.wait(DEADLINE_S)
    launcher.sendall(line_of({"variables": {WORLD_VARIABLE: "2", "HVDTRAIN_TEST_GONE": None}}))
    os.environ["HVDTRAIN_TEST_GONE"] = "1"
    assert channel.next_world() is None
    assert heard(launcher, 1) == [{"ready": 1}]
    assert os.environ[WORLD_VARIABLE] == "2"
    assert "HVDTRAIN_TEST_GONE" not in os.environ
    assert channel.change() is None
    over.clear()
    launcher.sendall(line_of({"change": True}) + line_of({"over": 2}))
    assert over.wait(DEADLINE_S)
    assert channel.change() == CHANGE


def test_a_worker_is_told_to_leave_or_that_nobody_is_there(ends: tuple[socket.socket, WorldChannel]) -> None:
    launcher, channel = ends
    launcher.sendall(line_of({"leave": 75}))
    assert channel.next_world() == 75
    launcher.shutdown(socket.SHUT_WR)
    with pytest.raises(HvdtrainError, match="closed its connection"):
        channel.next_world()
