"""Servers of Ray are told from others by their first bytes; tests/parallel/test_launch_ray.py asks a real one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hvdtrain.cli.main import main
from hvdtrain.launch.ray.grpc_answer import why_not_grpc

NO_RAY = "what listens there is no server of Ray"


@contextmanager
def answering(*parts: bytes, stays: bool = False) -> Iterator[int]:
    """The port of a server that sends these parts to everyone who connects, and then closes or `stays`."""
    kept = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return  # it was closed
                for part in parts:
                    connection.sendall(part)
                if stays:
                    kept.append(connection)
                else:
                    connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(30)
        for connection in kept:
            connection.close()


SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


@pytest.mark.parametrize(
    ("parts", "stays", "said"),
    [
        ([SETTINGS], True, ""),
        ([SETTINGS[:2], SETTINGS[2:]], True, ""),
        ([b"SSH-2.0-OpenSSH_9.2\r\n"], True, NO_RAY),
        ([b"-ERR unknown command\r\n"], False, NO_RAY),
        ([], True, NO_RAY),
    ],
    ids=["gRPC", "in two parts", "ssh", "Redis", "silence"],
)
def test_the_first_bytes_tell(parts: list[bytes], stays: bool, said: str) -> None:
    with answering(*parts, stays=stays) as port:
        assert why_not_grpc("127.0.0.1", port, 30.0 if parts else 0.2) == said


def test_an_encrypted_server_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USE_TLS", "1")
    assert why_not_grpc("127.0.0.1", 1) == ""


def test_another_server_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray")
    with answering(b"SSH-2.0-OpenSSH_9.2\r\n", stays=True) as port:
        assert main(["launch", "ray", "-np", "1", "--address", f"127.0.0.1:{port}", "--", "train"]) == 2
    assert f"There is no Ray cluster at 127.0.0.1:{port}: {NO_RAY}." in capsys.readouterr().err
