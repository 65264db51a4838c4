"""The store's laws, and the server's answers over a real socket."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.comm.rendezvous.key_value_store import MAX_VALUE_BYTES, RefusedError, RendezvousStore
from hvdtrain.comm.rendezvous.server import RendezvousServer

OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["put", "delete"]), st.sampled_from(["0", "1", "rank_0", "other"]), st.binary(max_size=4))
)


@given(OPERATIONS)
def test_the_store_is_a_dictionary(operations: list[tuple[str, str, bytes]]) -> None:
    """Deleting a rank's number deletes its rank_N too; everything else is as in a dict."""
    store, model = RendezvousStore(2), dict[str, bytes]()
    for operation, key, value in operations:
        if operation == "put":
            store.put("global", key, value)
            model[key] = value
        else:
            store.delete("global", key)
            model.pop(key, None)
            model.pop(f"rank_{key}", None)
    assert {key: store.get("global", key) for key in model} == model
    assert all(store.get("local_a", key) is None for key in model)


@given(size=st.integers(1, 6), there=st.sets(st.integers(0, 5)), prefix=st.sampled_from(["", "rank_"]))
def test_readers_wait_exactly_while_a_rank_is_missing(size: int, there: set[int], prefix: str) -> None:
    store = RendezvousStore(size)
    for rank in there:
        store.put("global", f"{prefix}{rank}", b"x")
    complete = set(range(size)) <= there
    assert store.must_wait("global", f"{prefix}0") is not complete
    assert not store.must_wait("cross_0", f"{prefix}0")
    assert not store.must_wait("global", f"{prefix}{size}")  # no such rank: 404 at once
    assert store.arrived() == ({rank for rank in there if rank < size} if prefix else set())


def test_connected_ranks_are_those_that_deleted_their_number() -> None:
    store = RendezvousStore(2)
    store.put("global", "rank_1", b"")
    store.delete("local_a", "0")
    store.delete("global", "rank_0")
    store.delete("global", "1")
    assert store.connected == {1}
    assert store.arrived() == {1}


def test_keys_and_bytes_are_capped() -> None:
    few_keys, few_bytes = RendezvousStore(1), RendezvousStore(1)
    with pytest.raises(RefusedError):
        fill(few_keys, 1000, b"")
    with pytest.raises(RefusedError):
        fill(few_bytes, 70, bytes(MAX_VALUE_BYTES))


def fill(store: RendezvousStore, keys: int, value: bytes) -> None:
    for number in range(keys):
        store.put("x", f"key{number}", value)


@pytest.fixture
def server() -> Iterator[RendezvousServer]:
    with RendezvousServer("127.0.0.1", 2) as running:
        yield running


def ask(server: RendezvousServer, method: str, key: str, body: bytes = b"", token: str | None = None) -> bytes:
    """The whole answer. The path is what Horovod's client makes of its variables."""
    address = server.environment["HOROVOD_GLOO_RENDEZVOUS_ADDR"]
    host, _, own_token = address.partition("/")
    path = f"/{own_token if token is None else token}:{server.port}/{key}"
    with socket.create_connection(("127.0.0.1", int(host.partition(":")[2])), timeout=60) as connection:
        head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        answer = b""
        while data := connection.recv(4096):
            answer += data
        return answer


def test_values_come_back_and_missing_ones_are_404(server: RendezvousServer) -> None:
    body = bytes(range(256)) * 100
    assert ask(server, "GET", "local_a/0").startswith(b"HTTP/1.1 404 ")
    assert ask(server, "PUT", "local_a/0", body).startswith(b"HTTP/1.1 200 ")
    assert ask(server, "GET", "local_a/0").endswith(b"\r\n\r\n" + body)
    assert ask(server, "DELETE", "local_a/0").startswith(b"HTTP/1.1 200 ")
    assert ask(server, "GET", "local_a/0").startswith(b"HTTP/1.1 404 ")


def test_a_reader_gets_its_answer_when_the_last_rank_has_come(server: RendezvousServer) -> None:
    ask(server, "PUT", "global/rank_0", b"a")
    answers: list[bytes] = []
    reader = threading.Thread(target=lambda: answers.append(ask(server, "GET", "global/rank_0")))
    reader.start()
    reader.join(0.3)
    assert reader.is_alive()
    assert server.arrived == {0}
    ask(server, "PUT", "global/rank_1", b"b")
    reader.join(60)
    assert answers[0].endswith(b"\r\n\r\na")
    assert server.arrived == {0, 1}
    assert server.connected == set()


def test_a_reader_is_not_kept_longer_than_said() -> None:
    with RendezvousServer("127.0.0.1", 2, hold_seconds=0.3) as server:
        begin = time.monotonic()
        assert ask(server, "GET", "global/0").startswith(b"HTTP/1.1 404 ")
        assert time.monotonic() - begin > 0.25


def test_who_waits_is_refused_once_a_rank_is_lost(server: RendezvousServer) -> None:
    ask(server, "PUT", "global/rank_0", b"a")
    ended: list[bytes] = []

    def wait() -> None:
        try:
            ended.append(ask(server, "GET", "global/rank_0"))
        except ConnectionResetError:
            ended.append(b"")

    reader = threading.Thread(target=wait)
    reader.start()
    reader.join(0.3)
    assert reader.is_alive()
    server.abandon()
    reader.join(60)
    assert ended == [b""]
    wait()
    assert ended == [b"", b""], "so is who comes later"


@pytest.mark.parametrize(
    ("method", "key", "token", "status"),
    [
        ("GET", "global/0", "", 403),
        ("GET", "global/0", "wrong", 403),
        ("PUT", "global/0", "wrong", 403),
        ("POST", "global/0", None, 400),
        ("GET", "global", None, 400),
        ("GET", "a/b/c", None, 400),
    ],
)
def test_refusals(method: str, key: str, token: str | None, status: int, server: RendezvousServer) -> None:
    assert ask(server, method, key, token=token).startswith(b"HTTP/1.1 %d " % status)


def test_idle_connections_leave_room_for_ranks_again(server: RendezvousServer) -> None:
    """More of them than the server keeps: some are closed at once, the others when their time is over."""
    idle = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(100)]
    try:
        for connection in idle:
            assert connection.recv(1) == b""
        assert ask(server, "PUT", "x/y", b"z").startswith(b"HTTP/1.1 200 ")
    finally:
        for connection in idle:
            connection.close()


def test_a_taken_port_is_an_error(server: RendezvousServer) -> None:
    with pytest.raises(OSError, match="in use"), RendezvousServer("127.0.0.1", 2, server.port):
        pass


def test_whoever_starts_the_job_is_told_of_every_change() -> None:
    told = threading.Event()
    with RendezvousServer("127.0.0.1", 1, notify=told.set) as server:
        ask(server, "PUT", "global/rank_0", b"")
        assert told.wait(60)
