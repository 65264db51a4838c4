"""Rank 0 of a job without a launcher: who does not know the secret, or repeats what another one said, gets nothing."""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest
from listening import listening
from memory import grown_mb
from support.processes import Spawned, free_port
from trap import Trap

from hvdtrain.comm.rendezvous.address import meeting_point
from hvdtrain.comm.rendezvous.handshake import GREETING, Hello, Keys, new_nonce, parse_nonce
from hvdtrain.comm.rendezvous.server import RendezvousServer
from hvdtrain.topology import detect_topology

SECRET = "correct horse"
DEADLINE_S = 120
GIANT_MB = 64
HELLO = Hello(1, 3, "b")


@dataclass(frozen=True)
class Rank0:
    """A training that waits for ranks 1 and 2."""

    process: int
    port: int
    keys: Keys


@pytest.fixture(scope="module")
def rank0(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rank0]:
    """`hvdtrain train` as rank 0 of 3."""
    port, folder = free_port(), tmp_path_factory.mktemp("rank0")
    own = {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    env = {**os.environ, **own, "HVDTRAIN_SECRET": SECRET, "HVDTRAIN_START_TIMEOUT": "300"}
    point = meeting_point(detect_topology(own), own)
    with Spawned([sys.executable, "-m", "hvdtrain", "train"], env, folder) as rank:
        process = rank.process.pid
        rank.await_that(lambda: bool(listening([process])), "port of rank 0", DEADLINE_S)
        assert listening([process]) == {(process, "127.0.0.1", port)}, "on the address that was named, only"
        yield Rank0(process, port, Keys(point.job, SECRET.encode()))


@dataclass
class Unguarded:
    """Checks an HMAC, but of a text that never changes."""

    secret: bytes
    port: int = 0

    def __enter__(self) -> Unguarded:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def proof(self, content: str) -> str:
        return hmac.new(self.secret, content.encode(), hashlib.sha256).hexdigest()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                with connection, connection.makefile("rb") as reader:
                    *content, proof = reader.readline().decode().split()
                    if hmac.compare_digest(proof, self.proof(" ".join(content))):
                        connection.sendall(b"TOKEN")


def say(port: int, first: bytes, then: Callable[[str], bytes] | None = None) -> bytes:
    """Send the first line, and what `then` makes of the server's nonce; returns what comes back after that."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as connection,
        connection.makefile("rb") as reader,
        suppress(ConnectionError),
    ):
        connection.sendall(first)
        if then is not None:
            connection.sendall(then(parse_nonce(reader.readline())[0]))
        return reader.read()
    return b""


def signed(keys: Keys, nonces: tuple[str, str]) -> bytes:
    return f"{HELLO.content} {keys.proof('rank', nonces, HELLO.content)}\n".encode()


def test_what_a_rank_has_said_is_worth_nothing_when_said_again(rank0: Rank0) -> None:
    """The attacker has seen all that rank 1 sent."""
    with Unguarded(SECRET.encode()) as server:
        recorded = f"{HELLO.content} {server.proof(HELLO.content)}\n".encode()
        assert [say(server.port, recorded), say(server.port, recorded)] == [b"TOKEN", b"TOKEN"]

    own = new_nonce()
    greeting, sent = f"{GREETING} {own}\n".encode(), b""
    with socket.create_connection(("127.0.0.1", rank0.port), timeout=DEADLINE_S) as connection:
        connection.sendall(greeting)
        sent = signed(rank0.keys, (own, parse_nonce(connection.makefile("rb").readline())[0]))
        connection.sendall(sent)
        connection.settimeout(1)
        with pytest.raises(TimeoutError):
            connection.recv(1)  # rank 0 believes this one, and lets it wait for the others
    assert say(rank0.port, greeting, lambda _nonce: sent) == b""


@pytest.mark.parametrize("keys", [Keys("", b"guess"), Keys("", b"")], ids=["another secret", "none"])
def test_who_does_not_know_the_secret_is_not_let_in(rank0: Rank0, keys: Keys) -> None:
    own, guess = new_nonce(), Keys(rank0.keys.job, keys.secret)
    greeting = f"{GREETING} {own}\n".encode()
    with Unguarded(b"") as server:  # a secret that everybody knows
        hello = f"{HELLO.content} {hmac.new(b'', HELLO.content.encode(), hashlib.sha256).hexdigest()}\n"
        assert say(server.port, hello.encode()) == b"TOKEN"
    assert say(rank0.port, greeting, lambda nonce: signed(guess, (own, nonce))) == b""


def test_what_is_no_hello_or_a_giant_one_takes_no_memory(rank0: Rank0, trap: Trap) -> None:
    giant = b"9" * (GIANT_MB * 2**20)
    with Unguarded(b"") as server:
        line = giant + b"\n"
        assert grown_mb("self", lambda: say(server.port, line)) > GIANT_MB / 2, "who reads a whole line holds it"

    def attack() -> None:
        greeting = f"{GREETING} {new_nonce()}\n".encode()
        for data in (trap.pickled, giant, b"GET /" + giant, b"PUT /x/y/z HTTP/1.1\r\n" + giant):
            assert b" 200 " not in say(rank0.port, data)
        assert say(rank0.port, greeting, lambda _: giant) == b""
        assert say(rank0.port, greeting, lambda _: trap.pickled + b"\n") == b""

    assert grown_mb(rank0.process, attack) < GIANT_MB / 2
    trap.require_unsprung()


def test_a_giant_value_is_refused_before_it_is_read() -> None:
    """Also from who knows the token."""
    with RendezvousServer("127.0.0.1", 2) as server:
        token = server.environment["HOROVOD_GLOO_RENDEZVOUS_ADDR"].partition("/")[2]
        head = f"PUT /{token}:{server.port}/global/rank_0 HTTP/1.1\r\nContent-Length: "
        assert say(server.port, f"{head}1\r\n\r\nx".encode()).startswith(b"HTTP/1.1 200 ")
        assert say(server.port, f"{head}{10**11}\r\n\r\n".encode()).startswith(b"HTTP/1.1 413 ")
        assert say(server.port, f"{head}{10**13}\r\n\r\n".encode()).startswith(b"HTTP/1.1 400 ")
