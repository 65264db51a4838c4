"""A gauge tells what has changed since its last look, which is not a moment ago."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from hvdtrain.slowness import gauge as gauge_module
from hvdtrain.slowness.causes import NOTHING, Pressure
from hvdtrain.slowness.gauge import INTERVAL, Connection, Counts, Gauge, Linux, connections

TOTALS = {"busy": 100.0, "stolen": 10.0, "throttled": 3.0, "major_faults": 40.0, "swapped": 7.0}
TOTALS |= {"memory_stall": 2.0, "io_stall": 6.0, "disk_wait": 1.0, "read_bytes": 1e6}
BEGIN = Counts({1: (5.0, 5.0), 2: (1.0, 1.0)}, TOTALS)


class Played(Linux):
    """A host whose counters the test sets."""

    now = BEGIN

    def read(self) -> Counts:
        return type(self).now


class Clocks:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall, self.cpu = 1000.0, 50.0
        monkeypatch.setattr(gauge_module.time, "monotonic", lambda: self.wall)
        monkeypatch.setattr(gauge_module.time, "process_time", lambda: self.cpu)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    monkeypatch.setattr(Played, "now", BEGIN)
    return Clocks(monkeypatch)


def set_counts(
    monkeypatch: pytest.MonkeyPatch, threads: dict[int, tuple[float, float]] | None = None, **changed: float
) -> None:
    monkeypatch.setattr(Played, "now", Counts(threads or Played.now.threads, {**Played.now.totals, **changed}))


def test_what_has_changed(clocks: Clocks, monkeypatch: pytest.MonkeyPatch) -> None:
    gauge = Gauge(linux=Played())
    clocks.wall += 4.0
    clocks.cpu += 1.5
    set_counts(
        monkeypatch,
        threads={1: (5.1, 15.0), 2: (9.0, 3.0), 9: (99.0, 77.0)},  # a new thread has worked before, too
        busy=108.0,
        stolen=12.0,
        throttled=30.0,  # of several processors
        major_faults=48.0,
        swapped=9.0,
        memory_stall=2.5,
        io_stall=7.0,
        disk_wait=1.25,
        read_bytes=1e6 + 512,
    )
    assert gauge.read() == Pressure(
        wall=4.0,
        cpu=1.5,
        queued=2.0,
        stolen=1.0,
        throttled=4.0,
        major_faults=8.0,
        swapped=2.0,
        memory_stall=0.5,
        io_stall=1.0,
        disk_wait=0.25,
        read_bytes=512.0,
    )
    clocks.wall += 4.0
    assert gauge.read() == Pressure(wall=4.0)


def test_a_look_is_not_repeated_at_once(clocks: Clocks, monkeypatch: pytest.MonkeyPatch) -> None:
    gauge = Gauge(linux=Played())
    clocks.wall += INTERVAL / 2
    set_counts(monkeypatch, major_faults=41.0)
    assert gauge.read() is NOTHING
    clocks.wall += INTERVAL / 2
    assert gauge.read().major_faults == 1.0


def test_counters_of_another_group_may_be_smaller(clocks: Clocks, monkeypatch: pytest.MonkeyPatch) -> None:
    gauge = Gauge(linux=Played())
    clocks.wall += INTERVAL
    set_counts(monkeypatch, throttled=0.0, busy=0.0, stolen=0.0)
    assert gauge.read() == Pressure(wall=INTERVAL)


def test_connections_that_were_used(clocks: Clocks, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter(
        [
            {
                "idle": Connection(5, 1, 0, 3, 9.0),
                "fast": Connection(0, 0, 0, 0, 0.1),
                "slow": Connection(10, 1, 2, 8, 0.1),
            },
            {
                "idle": Connection(5, 1, 0, 3, 9.0),
                "fast": Connection(100, 0.25, 0, 10, 0.001),
                "slow": Connection(60, 3, 4, 18, 0.2),
                "new": Connection(7, 7, 7, 7, 7),
            },
        ]
    )

    def look(files: Iterable[int]) -> Any:
        assert list(files) == [3, 4]
        return next(looks)

    monkeypatch.setattr(gauge_module, "connections", look)
    gauge = Gauge(lambda: [3, 4], Played())
    clocks.wall += INTERVAL
    found = gauge.read()
    assert (found.sent_bytes, found.send_busy, found.round_trip) == (150.0, 2.0, 0.2)
    assert (found.retransmitted, found.segments) == (2.0, 20.0)


def test_pressures_add_up() -> None:
    one = Pressure(wall=2.0, cpu=1.0, throttled=0.5, round_trip=0.2)
    other = Pressure(wall=2.0, cpu=2.0, major_faults=8.0, round_trip=0.1)
    both = one.plus(other)
    assert both == Pressure(wall=4.0, cpu=3.0, throttled=0.5, major_faults=8.0, round_trip=0.2)
    assert (both.share("cpu"), both.share("major_faults"), NOTHING.share("cpu")) == (0.75, 2.0, 0.0)


@pytest.fixture
def connected() -> Iterable[Callable[[str], tuple[int, int]]]:
    """Connects two ends of this machine over an address of the loopback network; returns their files."""
    opened: list[socket.socket] = []

    def connect(source: str) -> tuple[int, int]:
        server = socket.create_server(("127.0.0.1", 0))
        client = socket.create_connection(server.getsockname(), timeout=10, source_address=(source, 0))
        accepted, _ = server.accept()
        opened.extend((server, client, accepted))
        client.sendall(b"x" * 1000)
        assert accepted.recv(1000, socket.MSG_WAITALL)
        return client.fileno(), accepted.fileno()

    yield connect
    for one in opened:
        one.close()


def test_connections_to_another_address_are_counted_and_stay_open(connected: Any, tmp_path: Path) -> None:
    client, accepted = connected("127.0.0.2")
    with (tmp_path / "file").open("wb") as file:
        found = connections([client, accepted, file.fileno(), 10**6])
    assert len(found) == 2
    counted = next(one for key, one in found.items() if key[0] == client)  # type: ignore[index]
    assert counted.segments >= 1
    assert counted.round_trip > 0
    assert connections([client]).keys() <= found.keys()  # neither was closed, and a key stays the same


def test_connections_within_a_host_are_not(connected: Any) -> None:
    assert connections(connected("127.0.0.1")) == {}
