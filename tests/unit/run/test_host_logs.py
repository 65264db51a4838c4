"""Records of a host's ranks gather on its local disk, and come into the run folder all at once, from any of them."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import wait_until

from hvdtrain.history.heartbeats import Heartbeat
from hvdtrain.log_flush import close_logs_before_exit
from hvdtrain.run.log_files import host_log
from hvdtrain.run.watch.host_heartbeats import HostHeartbeats
from hvdtrain.run.watch.local_folder import LocalFolder

_RANK = """
import logging, sys, time
from pathlib import Path
from hvdtrain.run.log_files import host_log
from hvdtrain.run.watch.local_folder import LocalFolder
run = Path(sys.argv[1])
log = logging.getLogger("hvdtrain.run")
log.setLevel("INFO")
log.addHandler(host_log(run, 5, "node", LocalFolder(run, "node", run / "local")))
log.info("of another rank")
print("logged", flush=True)
time.sleep(300)
"""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[logging.Logger]:
    (tmp_path / "local").mkdir()
    logger = logging.getLogger("hvdtrain")
    handler = host_log(tmp_path, 0, "node", LocalFolder(tmp_path, "node", tmp_path / "local"))
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    yield logger
    logger.setLevel(level)
    logger.removeHandler(handler)
    handler.close()


def in_run_folder(run: Path) -> list[str]:
    (path,) = run.glob("host_*.log")
    return [line.rpartition(": ")[2] for line in path.read_text().splitlines()]


def test_they_wait_for_whoever_writes(log: logging.Logger, tmp_path: Path) -> None:
    for number in range(3):
        log.info("record %d", number)
    assert in_run_folder(tmp_path) == []
    close_logs_before_exit()
    assert in_run_folder(tmp_path) == ["record 0", "record 1", "record 2"]


def test_whoever_writes_the_heartbeats_writes_them(log: logging.Logger, tmp_path: Path) -> None:
    log.info("record")
    heartbeats = HostHeartbeats(tmp_path, "node", is_first=True, local=tmp_path / "local")
    heartbeats.write(Heartbeat(rank=0, size=64, start="a", host="node", pid=os.getpid(), time=time.time()))
    assert in_run_folder(tmp_path) == ["record"]


@pytest.mark.parametrize("level", [logging.WARNING, logging.ERROR])
def test_a_warning_is_written_at_once_with_what_came_before(log: logging.Logger, tmp_path: Path, level: int) -> None:
    log.info("before")
    log.log(level, "wrong")
    assert in_run_folder(tmp_path) == ["before", "wrong"]


def test_another_rank_writes_the_last_records_of_one_that_was_killed(log: logging.Logger, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _RANK, str(tmp_path)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"logged\n"
        other.kill()
    assert in_run_folder(tmp_path) == []
    log.warning("it is lost")
    assert in_run_folder(tmp_path) == ["of another rank", "it is lost"]


def test_the_end_of_a_rank_leaves_no_file_on_the_local_disk(log: logging.Logger, tmp_path: Path) -> None:
    log.info("record")
    (handler,) = (each for each in log.handlers if hasattr(each, "baseFilename"))
    handler.close()
    assert in_run_folder(tmp_path) == ["record"]
    assert not list((tmp_path / "local").rglob("*.log"))


def test_where_they_cannot_gather_each_is_written_at_once(log: logging.Logger, tmp_path: Path) -> None:
    LocalFolder(tmp_path, "node", tmp_path / "local").private.write_text("a file of somebody else")
    log.info("record")
    assert in_run_folder(tmp_path) == ["record"]


def test_a_rank_that_is_frozen_with_the_lock_keeps_nobody_waiting(log: logging.Logger, tmp_path: Path) -> None:
    local = LocalFolder(tmp_path, "node", tmp_path / "local")
    local.make_private()
    holder = os.fork()
    if holder == 0:
        file = os.open(local.log, os.O_RDWR | os.O_CREAT)
        fcntl.lockf(file, fcntl.LOCK_EX)
        (tmp_path / "held").touch()
        time.sleep(300)
        os._exit(0)
    try:
        wait_until("the lock is held", (tmp_path / "held").exists)
        log.info("record")
        assert in_run_folder(tmp_path) == ["record"]
    finally:
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
