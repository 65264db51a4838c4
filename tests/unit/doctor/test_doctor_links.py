"""Links: every pair is measured once, nobody twice at a time; streams say what arrived; the slow link is named."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.doctor.findings import Link, Links
from hvdtrain.doctor.host_agent import StreamServer, reach, send
from hvdtrain.doctor.network_links import link_findings, rounds

TOKEN = "0123456789abcdef"
LOOPBACK = "127.0.0.1"


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.sampled_from("abcdef")).filter(lambda x: x[0] != x[1]), unique=True
    )
)
def test_rounds_hold_each_link_once_and_no_host_twice(links: list[Link]) -> None:
    found = list(rounds(links))
    assert sorted(link for together in found for link in together) == sorted(links)
    for together in found:
        hosts = [host for link in together for host in link]
        assert len(hosts) == len(set(hosts))


def speeds(slow: dict[Link, float], hosts: str = "abc") -> Links:
    return Links({(a, b): slow.get((a, b), 110e6) for a in hosts for b in hosts if a != b}, {})


NAMED = {
    "one direction": ({("a", "c"): 12e6}, "a -> c: 12 MB/s, the others 110 MB/s"),
    "both directions": ({("c", "a"): 12e6, ("a", "c"): 13e6}, "a <-> c: 12 MB/s, the others 110 MB/s"),
    "an uplink": ({("c", "a"): 12e6, ("c", "b"): 13e6}, "from c to all others: 12 MB/s, the others 110 MB/s"),
    "a downlink": ({("a", "b"): 12e6, ("c", "b"): 13e6}, "from all others to b: 12 MB/s"),
    "a cable": (
        {("a", "b"): 12e6, ("c", "b"): 13e6, ("b", "a"): 12e6, ("b", "c"): 13e6},
        "b with all others, both ways: 12 MB/s, the others 110 MB/s",
    ),
    "beside scatter": ({("c", "a"): 12e6, ("c", "b"): 13e6, ("a", "b"): 60e6}, "from c to all others: 12 MB/s"),
}


@pytest.mark.parametrize("case", NAMED)
def test_the_slow_link_is_named(case: str) -> None:
    slow, words = NAMED[case]
    ports, links = link_findings(speeds(slow))
    assert (ports.status, links.status) == ("ok", "warn")
    assert links.fact.startswith(words)


@given(st.lists(st.floats(80e6, 120e6), min_size=6, max_size=6))
def test_alike_links_are_no_warning(rates: list[float]) -> None:
    links = speeds(dict(zip(speeds({}).rates, rates, strict=True)))
    assert [finding.status for finding in link_findings(links)] == ["ok", "ok"]


@given(st.floats(1e3, 50e6), st.sampled_from(sorted(speeds({}).rates)))
def test_any_slow_direction_is_the_one_that_is_named(rate: float, link: Link) -> None:
    finding = link_findings(speeds({link: rate}))[1]
    assert finding.fact.startswith(f"{link[0]} -> {link[1]}: ")


def test_two_hosts_with_one_slow_direction() -> None:
    assert "a -> b" in link_findings(Links({("a", "b"): 12e6, ("b", "a"): 110e6}, {}))[1].fact


def test_what_does_not_connect_fails_with_both_names() -> None:
    links = speeds({})
    links = Links(links.rates, {("a", "b"): "timed out"})
    finding = link_findings(links)[0]
    assert (finding.name, finding.status) == ("ports", "fail")
    assert finding.fact == "a does not reach b: timed out"


@pytest.fixture
def server() -> Iterator[tuple[StreamServer, int]]:
    with StreamServer() as server:
        yield server, server.listen(LOOPBACK, TOKEN, 30.0)


def test_a_stream_is_measured_by_its_receiver(server: tuple[StreamServer, int]) -> None:
    streams, port = server
    assert reach(LOOPBACK, port, TOKEN, 5.0) < 5.0
    send(LOOPBACK, port, TOKEN, "0-1", 0.2, 5.0)
    found = streams.received("0-1", 5.0)
    assert found["bytes"] > 0
    assert 0 < found["seconds"] < 5
    assert math.isfinite(found["bytes"] / found["seconds"])


def test_a_pause_at_the_beginning_is_no_link_without_bytes(server: tuple[StreamServer, int]) -> None:
    """A sender that waits for a processor, longer than the part of a stream that is not counted, and than all of it."""
    streams, port = server
    seconds = 0.2
    with socket.create_connection((LOOPBACK, port), 5) as sender:
        sender.sendall(f"{TOKEN}\n0-1\n{seconds}\n".encode() + b"x")
        sender.recv(1)
        time.sleep(1.5 * seconds)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while True:
                sender.sendall(bytes(2**20))
    found = streams.received("0-1", 5.0)
    assert found["bytes"] >= 2**20
    assert found["seconds"] >= seconds


def test_a_stream_that_never_came_is_an_error_in_time(server: tuple[StreamServer, int]) -> None:
    with pytest.raises(LookupError, match="nothing arrived"):
        server[0].received("0-1", 0.05)


def test_only_who_knows_the_token_is_answered(server: tuple[StreamServer, int]) -> None:
    with pytest.raises(OSError, match="something else answers"):
        reach(LOOPBACK, server[1], "f" * 16, 5.0)


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"x" * 100_000, b"\n\n\n", TOKEN.encode() + b"\ns\nnan\n"])
def test_strangers_are_cut_off_and_others_still_served(said: bytes, server: tuple[StreamServer, int]) -> None:
    with socket.create_connection((LOOPBACK, server[1]), 5) as stranger:
        try:
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
            stranger.recv(1)
        except (ConnectionResetError, BrokenPipeError, OSError):
            pass  # cut off while it still spoke
    assert reach(LOOPBACK, server[1], TOKEN, 5.0) < 5.0


def test_a_closed_port_is_an_error() -> None:
    with socket.create_server((LOOPBACK, 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(OSError, match="refused"):
        reach(LOOPBACK, port, TOKEN, 5.0)


def test_a_peer_that_says_nothing_ends_the_attempt() -> None:
    with socket.create_server((LOOPBACK, 0)) as silent, pytest.raises(OSError, match="timed out"):
        reach(LOOPBACK, silent.getsockname()[1], TOKEN, 0.2)


def test_leaving_the_server_closes_the_port() -> None:
    with StreamServer() as server:
        port = server.listen(LOOPBACK, TOKEN, 30.0)
    with pytest.raises(OSError, match=r"refused|reset|answers"):
        reach(LOOPBACK, port, TOKEN, 2.0)
    assert [thread.name for thread in threading.enumerate() if thread.name == "stream"] == []
