"""The state of a run follows from its files, its lock and its heartbeats, whoever of them is missing."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock
from support.run_folders import FakeRun, logged

from hvdtrain.engine import events
from hvdtrain.errors import PeerError
from hvdtrain.files import write_json
from hvdtrain.history.heartbeats import Heard, Heartbeat
from hvdtrain.history.metrics_end import read_metrics_end
from hvdtrain.history.run_facts import read_result
from hvdtrain.history.run_state import RunState, is_locked, is_over, state_of
from hvdtrain.run.run_folder import RunFolder
from hvdtrain.world_channel import CHANGE

HERE, ELSEWHERE = socket.gethostname(), "elsewhere"


def beat(rank: int = 0, age: float = 1.0, host: str = ELSEWHERE, end: str = "", error: str = "") -> tuple[int, Heard]:
    told = Heartbeat(rank=rank, size=2, start="a", host=host, pid=1, time=0.0, end=end, error=error)
    return rank, Heard(told, age)


def state(run: FakeRun, *beats: tuple[int, Heard], locked: bool | None = False) -> RunState:
    end = read_metrics_end(run.folder / "metrics.jsonl")
    return state_of(run.folder, read_result(run.folder), end, dict(beats), locked)


Write = Callable[[FakeRun], FakeRun]


@pytest.mark.parametrize(
    ("write", "beats", "locked", "word"),
    [
        (lambda run: run, [], True, "running"),
        (lambda run: run, [], False, "lost"),
        (lambda run: run, [], None, "lost"),
        (lambda run: run, [beat()], None, "running"),  # a file system without locks
        (lambda run: run, [beat(host=HERE)], None, "running"),
        (lambda run: run, [beat()], False, "running"),  # a file system that keeps locks to each host
        (lambda run: run, [beat(host=HERE)], False, "lost"),  # killed a second ago: its lock would be seen
        (lambda run: run, [beat(age=60.0)], None, "lost"),
        (lambda run: run, [beat(age=60.0)], True, "running"),  # all its ranks are frozen
        (lambda run: run.ended(), [], False, "finished"),
        (lambda run: run.ended(), [beat(end="ended")], None, "finished"),
        (lambda run: run.ended(finished=False), [], False, "stopped"),
        (lambda run: run.ended().events(events.RunStarted(90, 100, 50, 2)), [], False, "lost"),
        (lambda run: run.ended().events(events.RunStarted(90, 100, 50, 2)), [], True, "running"),
        (lambda run: run.events(events.RunFailed(5, ValueError("x"))), [], False, "failed"),
        (lambda run: run, [beat(end="failed")], False, "failed"),
    ],
)
def test_states(write: Write, beats: list[tuple[int, Heard]], locked: bool | None, word: str, tmp_path: Path) -> None:
    assert state(write(FakeRun.begun(tmp_path)), *beats, locked=locked).word == word


def test_the_error_of_the_rank_that_failed_first_is_told(tmp_path: Path) -> None:
    lost = PeerError("A collective operation was aborted.", "Another rank has ended.", "read its log.")
    run = FakeRun.begun(tmp_path).events(events.RunFailed(5, lost))
    assert state(run).note.startswith("PeerError: A collective")
    others = [beat(end="failed", error="PeerError: x"), beat(1, end="failed", error="ValueError: bad record")]
    assert state(run, *others) == RunState("failed", "rank 1: ValueError: bad record")
    lost_peers = [beat(rank, end="failed", error="PeerError: x") for rank in range(1, 8)]
    told = "ended without a word, as a killed process does; the others failed for that reason"
    assert state(run, beat(age=40.0), *lost_peers).note == f"rank 0 {told}"
    killed = [beat(rank, age=40.0) for rank in range(8, 14)]
    assert state(run, *lost_peers, *killed).note == f"ranks 8, 9, 10, 11 and 2 others {told}"
    assert state(run, lost_peers[0], *killed).note.startswith("PeerError")


def test_silent_ranks_of_a_running_run_are_told(tmp_path: Path) -> None:
    run = FakeRun.begun(tmp_path)
    assert state(run, beat(), beat(1), locked=True).note == ""
    assert state(run, beat(), beat(1, age=40.4), locked=True).note == "rank 1 is silent for 40 s"
    assert state(run, beat(age=50.0), beat(1, age=40.0), locked=True).note == "2 ranks are silent for 50 s"


def test_a_lost_run_says_whether_it_can_be_continued(tmp_path: Path) -> None:
    run = FakeRun.begun(tmp_path).events(logged(5))
    assert state(run).note.endswith("has no checkpoint")
    (tmp_path / "checkpoints" / "step_00000005").mkdir(parents=True)
    assert state(run).note.endswith("the same command continues it from its last checkpoint")


@pytest.mark.parametrize(
    ("stopped_by", "note"),
    [
        ("SIGTERM (rank 0)", "SIGTERM (rank 0) has ended it; the same command continues it"),
        ("", "--max-steps has ended it; a larger one continues it"),
    ],
)
def test_what_has_stopped_a_run_is_told(stopped_by: str, note: str, tmp_path: Path) -> None:
    run = FakeRun.begun(tmp_path).events(events.RunEnded(5, 40, False, stopped_by))
    write_json(tmp_path / "result.json", {"status": "stopped"})
    assert state(run) == RunState("stopped", note)


def test_what_cannot_be_read_leaves_the_state_unknown(tmp_path: Path) -> None:
    run = FakeRun.begun(tmp_path).ended()
    (tmp_path / "result.json").unlink()
    assert state(run) == RunState("finished", "its result is not known")
    (tmp_path / "metrics.jsonl").write_bytes(b"\0\n\xff\n")
    assert state(run) == RunState("unknown", "how it ended is not known: metrics.jsonl has no line that can be read")
    (tmp_path / "metrics.jsonl").write_bytes(b"")  # killed before the first line
    assert state(run).word == "lost"


def test_without_metrics_the_result_tells(tmp_path: Path) -> None:
    run = FakeRun.begun(tmp_path).ended()
    (tmp_path / "metrics.jsonl").unlink()
    assert state(run).word == "finished"


def test_a_lock_is_seen_and_left_to_its_holder(tmp_path: Path) -> None:
    assert is_locked(tmp_path) is False
    folder = RunFolder(tmp_path, 1)
    folder.claim()
    assert is_locked(tmp_path) is True
    folder.release()
    assert is_locked(tmp_path) is False
    folder.claim()  # looking has not taken it
    folder.release()
    with FileLock(tmp_path / ".lock"):
        assert is_locked(tmp_path) is True


@pytest.mark.parametrize(
    ("stopped_by", "word"),
    [
        (f"{CHANGE} (rank 0), {CHANGE} (rank 1)", "running"),
        (f"SIGTERM (rank 0), {CHANGE} (rank 1)", "stopped"),
        ("", "stopped"),
    ],
)
def test_a_run_whose_workers_change_is_running_if_it_goes_on(stopped_by: str, word: str, tmp_path: Path) -> None:
    run = FakeRun.begun(tmp_path).events(events.RunEnded(5, 40, False, stopped_by))
    write_json(tmp_path / "result.json", {"status": "stopped"})
    assert state(run).word == word
    assert is_over(tmp_path) == (word == "stopped")
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"time": ', '"time": -'))  # long ago
    assert state(run).word == "stopped"


def test_a_run_that_a_launcher_may_start_again_is_not_over(tmp_path: Path) -> None:
    run = FakeRun.begun(tmp_path).events(events.RunFailed(5, ValueError("x")))
    assert not is_over(tmp_path)  # it failed a moment ago
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"time": ', '"time": -'))  # long ago
    assert is_over(tmp_path)
    assert is_over(run.ended().folder)
