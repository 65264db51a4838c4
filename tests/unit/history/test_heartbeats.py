"""Heartbeats of one start are read, from files of any content; ages do not depend on the clocks of hosts."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.run_folders import FakeRun

from hvdtrain.history.heartbeats import (
    Heartbeat,
    Listener,
    heartbeat_file,
    heartbeat_of,
    host_file,
    read_heartbeat,
    read_heartbeats,
)


def beat(rank: int, start: str = "b", **changed: Any) -> Heartbeat:
    values: dict[str, Any] = {"size": 3, "host": f"h{rank}", "pid": 1, "time": time.time(), **changed}
    return Heartbeat(rank=rank, start=start, **values)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    beats = [beat(rank, step=7, steps_per_second=2.5, waits_in="gradients.0", gpu_use=0.5) for rank in range(3)]
    FakeRun(tmp_path).beats(*beats)
    heard = read_heartbeats(tmp_path)
    assert [heard[rank].beat for rank in range(3)] == beats
    assert all(one.age < 60 and not one.is_silent for one in heard.values())


def test_ranks_of_an_earlier_start_are_left_out(tmp_path: Path) -> None:
    FakeRun(tmp_path).beats(beat(0), beat(1), beat(2, start="a"))
    assert list(read_heartbeats(tmp_path)) == [0, 1]
    heartbeat_file(tmp_path, 0).unlink()
    FakeRun(tmp_path).beats(beat(2, start="a", time=1.0))
    assert list(read_heartbeats(tmp_path)) == [1]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"rank": 1',
        b"[1]",
        b'{"rank": 1}',
        b'{"rank": "1", "size": 2, "start": "a", "host": "h", "pid": 1, "time": 1.0}',
        b'{"rank": 1, "size": 2, "start": "a", "host": "h", "pid": 1, "time": NaN}',
        b'{"rank": 2, "size": 2, "start": "b", "host": "h", "pid": 1, "time": 1.0}',  # another rank's
        b" " * 2**20,
        b"[" * 9999,
    ],
)
def test_broken_ones_are_left_out(content: bytes, tmp_path: Path) -> None:
    FakeRun(tmp_path).beats(beat(0))
    heartbeat_file(tmp_path, 1).write_bytes(content)
    assert list(read_heartbeats(tmp_path)) == [0]


def test_keys_of_other_versions_may_be_there_or_missing() -> None:
    least = {"rank": 1, "size": 2, "start": "a", "host": "h", "pid": 1, "time": 1}
    assert heartbeat_of({**least, "colour": "red"}) == heartbeat_of(least)
    assert heartbeat_of(json.loads(json.dumps(vars(beat(1))))).rank == 1


def test_a_clock_that_is_wrong_silences_nobody(tmp_path: Path) -> None:
    FakeRun(tmp_path).beats(beat(0, time=time.time() - 3600), beat(1, time=time.time() + 3600), beat(2))
    os.utime(heartbeat_file(tmp_path, 2), (0, 0))
    assert [one.is_silent for one in read_heartbeats(tmp_path).values()] == [False] * 3


def test_an_old_one_is_silence_unless_it_was_the_last(tmp_path: Path) -> None:
    old = time.time() - 40
    slow = replace(beat(2, time=old), interval=30.0)
    FakeRun(tmp_path).beats(beat(0, time=old), beat(1, time=old, end="ended"), slow)
    for rank in range(3):
        os.utime(heartbeat_file(tmp_path, rank), (old, old))
    heard = read_heartbeats(tmp_path)
    assert [one.is_silent for one in heard.values()] == [True, False, False]
    assert 39 < heard[0].age < 99


def test_who_listens_measures_ages_by_the_own_clock(tmp_path: Path) -> None:
    clock = [100.0]
    listener = Listener(tmp_path, lambda: clock[0])
    FakeRun(tmp_path).beats(beat(0, beat=1), beat(1, beat=1))
    first = {rank: heard.age for rank, heard in listener.hear().items()}
    clock[0] += 50.0
    wrong = time.time() - 3600
    FakeRun(tmp_path).beats(beat(1, beat=2, time=wrong))
    os.utime(heartbeat_file(tmp_path, 1), (wrong, wrong))
    heard = listener.hear()
    assert heard[0].age == pytest.approx(first[0] + 50.0)
    assert heard[1].age == 50.0  # it came after the last look, whatever its clock says
    assert heard[0].is_silent
    clock[0] += 2.0
    assert listener.hear()[1].age == 52.0


def test_what_one_rank_writes_for_its_host_is_read(tmp_path: Path) -> None:
    beats = [beat(rank, host=f"h{rank // 2}", step=7 + rank, waits_in="gradients.0") for rank in range(4)]
    FakeRun(tmp_path).beats_of_host(*beats[:2]).beats_of_host(*beats[2:])
    assert sorted(path.name for path in (tmp_path / "heartbeats").iterdir()) == [
        "host_of_rank_0.json",
        "host_of_rank_2.json",
    ]
    heard = read_heartbeats(tmp_path)
    assert [heard[rank].beat for rank in range(4)] == beats
    first = read_heartbeat(tmp_path, 0)
    assert first is not None
    assert first.beat == beats[0]
    assert read_heartbeat(tmp_path, 1) is None  # others may have its heartbeats, and it has no file


def test_the_newest_counts_where_several_files_have_a_rank(tmp_path: Path) -> None:
    now = time.time()
    run = FakeRun(tmp_path).beats(beat(1, time=now - 9, step=1), beat(2, time=now, step=5))
    run.beats_of_host(beat(0, time=now - 5, step=2), beat(1, time=now - 5, step=2), beat(2, time=now - 5, step=2))
    run.beats_of_host(beat(0, time=now - 5, step=2), beat(1, time=now, step=4), writer=1)
    assert {rank: heard.beat.step for rank, heard in read_heartbeats(tmp_path).items()} == {0: 2, 1: 4, 2: 5}


def test_an_earlier_start_of_many_ranks_does_not_count(tmp_path: Path) -> None:
    old = [beat(rank, start="a", time=time.time() - 100) for rank in range(64)]
    FakeRun(tmp_path).beats_of_host(*old).beats(beat(0), beat(1))
    assert list(read_heartbeats(tmp_path)) == [0, 1]


def test_a_rank_is_silent_although_its_host_writes(tmp_path: Path) -> None:
    run = FakeRun(tmp_path).beats_of_host(beat(0), beat(1))
    run.beats_of_host(beat(2), beat(3), age=40.0)
    heard = read_heartbeats(tmp_path)
    assert [heard[rank].is_silent for rank in range(4)] == [False, False, True, True]
    assert 40 <= heard[2].age < 99


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"written": 1.0, "ranks": []}',
        b'{"written": 1.0, "same": {}, "ranks": [1]}',
        b'{"written": 1.0, "same": {}, "ranks": [{"rank": 1, "age": 1.0}]}',
        b'{"written": NaN, "same": {}, "ranks": []}',
        b'{"written": "now", "same": {}, "ranks": []}',
        b" " * 2**21,
    ],
)
def test_a_broken_file_of_a_host_is_left_out(content: bytes, tmp_path: Path) -> None:
    FakeRun(tmp_path).beats_of_host(beat(0), beat(1))
    host_file(tmp_path, 2).write_bytes(content)
    unread: set[int] = set()
    assert list(read_heartbeats(tmp_path, unread)) == [0, 1]
    assert unread == {2}
