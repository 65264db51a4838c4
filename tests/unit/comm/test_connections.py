"""Horovod's connections are ended from outside, and no others."""

from __future__ import annotations

import socket
import threading
import time

from hvdtrain.comm.horovod_connections import end_connections, remembering_connections


def test_only_what_was_opened_in_the_block_ends_and_a_wait_for_it_fails() -> None:
    before = socket.socketpair()
    with remembering_connections():
        opened = socket.socketpair()
    after = socket.socketpair()
    got: list[bytes] = []
    waiting = threading.Thread(target=lambda: got.append(opened[0].recv(1)))
    waiting.start()
    end_connections()
    waiting.join(10)
    assert got == [b""]
    for left, right in (before, after):
        left.send(b"x")
        assert right.recv(1) == b"x"
    for each in (*before, *opened, *after):
        each.close()
    end_connections()  # of sockets that are closed: nothing


def test_while_the_block_runs_all_that_it_opens_ends() -> None:
    """As a rank that is told of a lost one while it connects."""
    before, got = socket.socketpair(), []
    with remembering_connections():
        ending = threading.Thread(target=end_connections)
        ending.start()
        for _ in range(2):
            time.sleep(0.1)  # whatever is opened when
            opened = socket.socketpair()
            got.append(opened[0].recv(1))
            for each in opened:
                each.close()
    ending.join(10)
    assert got == [b"", b""]
    assert not ending.is_alive()
    before[0].send(b"x")
    assert before[1].recv(1) == b"x"
    for each in before:
        each.close()


def test_a_number_that_is_used_again_is_another_connection() -> None:
    with remembering_connections():
        opened = socket.socketpair()
    for each in opened:
        each.close()
    left, right = socket.socketpair()
    end_connections()
    left.send(b"x")
    assert right.recv(1) == b"x"
    left.close()
    right.close()
