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
from hvdtrain.log_flush import close_logs_before_exit, flush_logs, holding_logs
from hvdtrain.run.log_files import host_log
from hvdtrain.run.watch.host_heartbeats import HostHeartbeats
from hvdtrain.run.watch.local_folder import LocalFolder

_RANK = """
import logging, sys, time
from pathlib import Path
from hvdtrain.log_flush import holding_logs
from hvdtrain.run.log_files import host_log
from hvdtrain.run.watch.local_folder import LocalFolder
run = Path(sys.argv[1])
log = logging.getLogger("hvdtrain")
log.setLevel("INFO")
log.addHandler(host_log(run, 5, "node", LocalFolder(run, "node", run / "local")))
with holding_logs():
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
    with holding_logs():
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
    flush_logs()
    assert in_run_folder(tmp_path) == ["record 0", "record 1", "record 2"]


def test_they_are_written_before_a_process_ends_at_once(log: logging.Logger, tmp_path: Path) -> None:
    log.info("record")
    close_logs_before_exit()
    wait_until("the thread has written it", lambda: in_run_folder(tmp_path) == ["record"])


def test_they_are_held_back_during_training_only(log: logging.Logger, tmp_path: Path) -> None:
    with holding_logs():
        log.info("in training")
    log.info("afterwards")
    assert in_run_folder(tmp_path) == ["in training", "afterwards"]


def test_what_cannot_be_written_waits(log: logging.Logger, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a full disk; in the order in which it was logged."""
    (handler,) = (each for each in log.handlers if hasattr(each, "holds_back"))
    before, handler.stream = handler.stream, open("/dev/full", "w")  # noqa: SIM115
    log.info("first")
    log.warning("second")
    flush_logs()
    handler.stream.close()
    handler.stream = before
    assert in_run_folder(tmp_path) == []
    assert capsys.readouterr().err.count("cannot be written now") == 1
    flush_logs()
    flush_logs()
    assert in_run_folder(tmp_path) == ["first", "second"]


def test_what_a_process_had_taken_that_has_ended_is_written(log: logging.Logger, tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    local = LocalFolder(tmp_path, "node", tmp_path / "local")
    local.make_private()
    for pid, text in ((ended.pid, "of an ended one"), (os.getppid(), "of one that writes it")):
        local.log.with_suffix(f".{pid}.log").write_text(f"now: {text}\n")
    log.info("record")
    flush_logs()
    assert in_run_folder(tmp_path) == ["record", "of an ended one"]


def test_what_killed_runs_have_left_is_removed(log: logging.Logger, tmp_path: Path) -> None:
    log.info("record")
    local = LocalFolder(tmp_path, "node", tmp_path / "local")
    os.utime(local.log, (0, 0))
    LocalFolder(tmp_path / "another run", "node", tmp_path / "local").make()
    assert not local.log.exists()


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
    (handler,) = (each for each in log.handlers if hasattr(each, "holds_back"))
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
        begin = time.monotonic()
        log.info("record")
        assert in_run_folder(tmp_path) == ["record"]
        assert time.monotonic() - begin < 30  # it is frozen for longer
    finally:
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
