"""What the image's health check finds, with real sockets, files and processes."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
from docker_stages import ROOT


@pytest.fixture(scope="module")
def health() -> ModuleType:
    """docker/health.py, which is installed as a program."""
    spec = importlib.util.spec_from_file_location("image_health", ROOT / "docker/health.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def answering(words: bytes) -> Iterator[int]:
    """The port of a server on loopback that says `words` to the first who calls."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(words)

        thread = threading.Thread(target=answer)
        thread.start()
        yield server.getsockname()[1]
        thread.join(timeout=60)


def test_sshd_is_healthy_if_it_greets(health: ModuleType) -> None:
    with answering(b"SSH-2.0-OpenSSH_9.2\r\n") as port:
        assert health.trouble_of_sshd(port) is None
    with answering(b"HTTP/1.1 400\r\n") as port:
        assert "is not sshd's" in health.trouble_of_sshd(port)
    assert "does not answer" in health.trouble_of_sshd(port)


def test_a_training_is_healthy_while_its_metrics_grow(health: ModuleType, tmp_path: Path) -> None:
    now = time.time()
    assert health.trouble_of_training(tmp_path, now - 9999, 60, now) is None  # still starting
    metrics = tmp_path / "digits" / "metrics.jsonl"
    metrics.parent.mkdir()
    metrics.touch()
    for age, troubled in ((10, False), (100, True)):
        os.utime(metrics, (now - age, now - age))
        assert bool(health.trouble_of_training(tmp_path, now - 9999, 60, now)) is troubled
    assert health.trouble_of_training(tmp_path, now - 50, 60, now) is None  # another container's, before this one


def test_a_full_disk_is_found(health: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert health.trouble_of_runs(tmp_path) is None
    monkeypatch.setattr(health, "LEAST_FREE_BYTES", 2**60)
    assert "too few for a checkpoint" in health.trouble_of_runs(tmp_path)


def test_processes_and_their_start_are_read_from_proc(health: ModuleType) -> None:
    before = time.time()
    command = [sys.executable, "-c", "print(flush=True); input()", "a word"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()  # now it is the program that it says
        assert command in health.programs()
        assert health.start_of(child.pid) == pytest.approx(before, abs=5)  # btime is in whole seconds, a tick 10 ms
        child.communicate(b"\n", timeout=60)
