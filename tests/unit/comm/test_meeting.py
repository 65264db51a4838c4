"""Places derived from hosts, meeting points, and the hello: who is let in, and what the others are told."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.comm.rendezvous.address import address_to_serve, interface_of, meeting_point
from hvdtrain.comm.rendezvous.connect import World, connected_ranks, join
from hvdtrain.comm.rendezvous.handshake import GREETING, Hello, Keys, Meeting, new_nonce, parse_nonce
from hvdtrain.comm.rendezvous.places import places_of
from hvdtrain.comm.rendezvous.server import RendezvousServer
from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.topology import Topology, detect_topology

HOSTS = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["10.0.0.1", "10.0.0.2"])), min_size=1, max_size=8)


@given(HOSTS)
def test_places_fit_together(hosts: list[tuple[str, str]]) -> None:
    """Within a host local ranks are 0..n-1; within a local rank cross ranks are; names tell hosts apart."""
    places = places_of(hosts)
    for key, group, number, count in (
        ("HOST", hosts, "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
        ("LOCAL", [p["HOROVOD_LOCAL_RANK"] for p in places], "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE"),
    ):
        for member in set(group):
            mine = [place for place, of in zip(places, group, strict=True) if of == member]
            assert sorted(int(place[number]) for place in mine) == list(range(len(mine))), key
            assert {place[count] for place in mine} == {str(len(mine))}, key
    names = {(place["HOROVOD_HOSTNAME"], host) for place, host in zip(places, hosts, strict=True)}
    assert len(names) == len({name for name, _ in names}) == len(set(hosts))
    for rank, place in enumerate(places):
        assert (detect_topology(place).rank, detect_topology(place).size) == (rank, len(hosts))


def by_hand(**more: str) -> dict[str, str]:
    return {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", **more}


def point_of(environ: dict[str, str]) -> Any:
    return meeting_point(detect_topology(environ), environ)


def test_ranks_of_one_start_go_to_the_same_place_and_those_of_another_elsewhere() -> None:
    first, second = point_of(by_hand()), point_of(by_hand(RANK="1", HOME="/other"))
    assert first == second
    assert first.ports[0] == 29500
    assert all(20_000 <= port < 30_000 for port in first.ports[1:])
    agent = by_hand(TORCHELASTIC_RUN_ID="x", TORCHELASTIC_RESTART_COUNT="0")
    assert 29500 not in point_of(agent).ports  # the agent listens there itself
    assert point_of({**agent, "TORCHELASTIC_RESTART_COUNT": "1"}).ports != point_of(agent).ports


SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_STEP_NODELIST": "n[3,8]",
}


def test_slurm_meets_on_the_first_node_of_the_step() -> None:
    assert point_of(SLURM).host == "n3"
    assert point_of({**SLURM, "SLURM_STEP_ID": "1"}).ports != point_of(SLURM).ports
    one = {**SLURM, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_NODELIST": "n3"}
    assert point_of(one).host == "127.0.0.1"
    with pytest.raises(UsageError, match="SLURM_STEP_NODELIST"):
        point_of({name: value for name, value in SLURM.items() if name != "SLURM_STEP_NODELIST"})


@pytest.mark.parametrize("port", ["", "0", "65536", "-1", "12x", "²"])
def test_ports_that_are_none(port: str) -> None:
    with pytest.raises(UsageError, match="MASTER_PORT"):
        point_of(by_hand(MASTER_PORT=port))


def test_rank_0_serves_on_the_address_that_was_named() -> None:
    assert address_to_serve(point_of(by_hand(MASTER_ADDR="localhost")), Topology(0, 2, 0, 1, 0, 2)) == "127.0.0.1"
    with pytest.raises(HvdtrainError, match="does not resolve"):
        address_to_serve(point_of(by_hand(MASTER_ADDR="no-such-host.invalid")), Topology(0, 2, 0, 2))


def test_interfaces_are_found_by_address() -> None:
    assert interface_of("127.0.0.1") == interface_of("127.0.1.1") == "lo"
    with pytest.raises(HvdtrainError, match=r"has the address 192\.0\.2\.1"):
        interface_of("192.0.2.1")


class Host:
    """Rank 0's server with a meeting, and threads that join it."""

    def __init__(self, size: int, seconds: float) -> None:
        self.keys = Keys("job", b"secret")
        self.deadline = time.monotonic() + seconds
        self.meeting = Meeting(self.keys, size, self.deadline)
        self.server = RendezvousServer("127.0.0.1", size, greeter=self.meeting.greet)

    def __enter__(self) -> Host:
        self.server.__enter__()
        self.meeting.store_variables = {"STORE": "here"}
        return self

    def __exit__(self, *_: object) -> None:
        self.server.__exit__(None, None, None)

    def join_all(self, *hellos: Hello) -> list[World | HvdtrainError]:
        results: dict[int, World | HvdtrainError] = {}

        def one(number: int, hello: Hello) -> None:
            try:
                results[number] = join("127.0.0.1", (self.server.port,), self.keys, hello, self.deadline)
            except HvdtrainError as error:
                results[number] = error

        threads = [threading.Thread(target=one, args=given) for given in enumerate(hellos)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return [results[number] for number in range(len(hellos))]


def test_each_learns_its_place_in_the_same_world() -> None:
    with Host(3, 20) as host:
        worlds = host.join_all(*(Hello(rank, 3, f"n{rank % 2}") for rank in (2, 0, 1)))
    places = places_of([("n0", "127.0.0.1"), ("n1", "127.0.0.1"), ("n0", "127.0.0.1")])
    assert worlds == [World(places[rank], {"STORE": "here"}, "127.0.0.1") for rank in (2, 0, 1)]


def test_everybody_is_told_who_is_missing() -> None:
    with Host(4, 1.0) as host:
        errors = host.join_all(Hello(0, 4, "a"), Hello(2, 4, "a"))
    assert ["Ranks 1, 3 did not come in time." in str(error) for error in errors] == [True, True]
    with Host(100, 1.0) as host:
        (error,) = host.join_all(Hello(0, 100, "a"))
    assert "19, 20 and 79 more did not come in time." in str(error)


@pytest.mark.parametrize(
    ("hello", "fact"),
    [
        (Hello(1, 5, "b"), "Rank 1 on b believes in 5 ranks, rank 0 in 2."),
        (Hello(2, 2, "b"), "Rank 2 on b is not below the number of ranks, 2."),
    ],
)
def test_worlds_that_do_not_fit_are_refused(hello: Hello, fact: str) -> None:
    with Host(2, 5) as host:
        (error,) = host.join_all(hello)
    assert isinstance(error, UsageError)
    assert error.fact == fact


def test_a_rank_comes_once() -> None:
    with Host(2, 2) as host:
        results = host.join_all(Hello(1, 2, "b"), Hello(1, 2, "b"))
    assert sorted(type(result).__name__ for result in results) == ["HvdtrainError", "UsageError"]
    assert any("is there already" in str(result) for result in results)


def exchange(port: int, lines: Callable[[str], list[bytes]], greeting: bytes) -> bytes:
    """Greet, send what `lines` makes of the server's nonce, and return what comes back until the end."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection, connection.makefile("rb") as reader:
        connection.sendall(greeting)
        nonce = parse_nonce(reader.readline())[0]
        try:
            for line in lines(nonce):
                connection.sendall(line)
            return reader.read()
        except ConnectionError:
            return b""


def test_replayed_wrong_and_giant_hellos_are_refused() -> None:
    hello, own = Hello(1, 2, "b"), new_nonce()
    greeting = f"{GREETING} {own}\n".encode()
    with Host(2, 30) as host:
        keys, port = host.keys, host.server.port

        def signed(signer: Keys, nonces: tuple[str, str]) -> bytes:
            return f"{hello.content} {signer.proof('rank', nonces, hello.content)}\n".encode()

        old = new_nonce()
        assert exchange(port, lambda _: [signed(keys, (own, old))], greeting) == b""  # another hello's proof
        assert exchange(port, lambda nonce: [signed(Keys("job", b"guess"), (own, nonce))], greeting) == b""
        assert exchange(port, lambda nonce: [signed(Keys("other", b"secret"), (own, nonce))], greeting) == b""
        assert exchange(port, lambda _: [b"9" * 2**20], greeting) == b""
        assert exchange(port, lambda _: [b"\x80\x04cposix\nsystem\n"], greeting) == b""
        worlds = host.join_all(Hello(0, 2, "a"), hello)
    assert all(isinstance(world, World) for world in worlds)


def test_a_rank_does_not_believe_another_server() -> None:
    with Host(1, 20) as host:
        with pytest.raises(HvdtrainError, match="found no rank 0"):
            join("127.0.0.1", (host.server.port,), Keys("job", b"other"), Hello(0, 1, "a"), time.monotonic() + 0.5)
        (world,) = host.join_all(Hello(0, 1, "a"))
    assert isinstance(world, World)


def test_the_environment_leads_horovod_to_rank_0() -> None:
    environ = by_hand(WORLD_SIZE="1", MASTER_PORT="0")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        environ["MASTER_PORT"] = str(probe.getsockname()[1])
    with connected_ranks(detect_topology(environ), environ):
        port = int(environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
        assert environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"].startswith(f"127.0.0.1:{port}/")
        socket.create_connection(("127.0.0.1", port), timeout=60).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=60)
    assert environ["HOROVOD_GLOO_IFACE"] == "lo"
    assert environ["HOROVOD_CONTROLLER"] == "gloo"
    assert json.dumps({name: environ[name] for name in ("HOROVOD_RANK", "HOROVOD_SIZE")}) == (
        '{"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"}'
    )
    assert "HOROVOD_RANK" not in os.environ


@pytest.mark.parametrize("text", ["0", "-5", "1e3", "soon"])
def test_timeouts_that_are_none(text: str) -> None:
    environ = by_hand(HVDTRAIN_START_TIMEOUT=text)
    with pytest.raises(UsageError, match="HVDTRAIN_START_TIMEOUT"), connected_ranks(detect_topology(environ), environ):
        pass
