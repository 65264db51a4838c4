"""The merged view of logs: complete, each log in its order, records whole, times in order wherever each log's are."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.run_folders import FakeRun

from hvdtrain.history.rank_logs import LONGEST, LogFile, LogLine, RunLogs, follow, merged

Record = tuple[int, list[bytes]]
"""When, in milliseconds, and the lines that follow the first one."""

RECORDS = st.lists(st.tuples(st.integers(0, 9), st.lists(st.sampled_from([b"", b"  File x", b"\xff"]), max_size=2)))
LOGS = st.lists(RECORDS, max_size=4)


def head(milliseconds: int, text: str = "m") -> bytes:
    at = datetime.fromtimestamp(1_000_000_000 + milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
    return f"{at} INFO hvdtrain.run: {text}".encode()


def lines_of(records: Sequence[Record]) -> list[bytes]:
    return [line for number, (at, more) in enumerate(records) for line in (head(at, str(number)), *more)]


def written(folder: Path, logs: Sequence[Sequence[Record]], torn: bytes = b"") -> FakeRun:
    run = FakeRun(folder)
    for path in (folder / "logs").glob("*"):
        path.unlink()
    for rank, records in enumerate(logs):
        run.log(rank, lines_of(records), torn)
    return run


def texts(lines: Iterator[LogLine], rank: int | None = None) -> list[bytes]:
    return [line.text for line in lines if rank is None or line.rank == rank]


@given(logs=LOGS, chunk=st.integers(1, 99), torn=st.sampled_from([b"", b"2026-0", b"  torn"]))
def test_nothing_is_lost_and_each_log_keeps_its_order(
    tmp_path_factory: pytest.TempPathFactory, logs: list[list[Record]], chunk: int, torn: bytes
) -> None:
    run = written(tmp_path_factory.getbasetemp(), logs, torn).folder
    files = [LogFile(run / "logs" / f"rank_{rank}.log", rank, chunk) for rank in range(len(logs))]
    found = list(merged([file.lines(whole=True) for file in files]))
    for rank, records in enumerate(logs):
        assert texts(iter(found), rank) == [*lines_of(records), *([torn] if torn else [])]


@given(logs=LOGS, chunk=st.integers(1, 99))
def test_lines_of_a_record_stay_together(
    tmp_path_factory: pytest.TempPathFactory, logs: list[list[Record]], chunk: int
) -> None:
    run = written(tmp_path_factory.getbasetemp(), logs).folder
    files = [LogFile(run / "logs" / f"rank_{rank}.log", rank, chunk) for rank in range(len(logs))]
    before: LogLine | None = None
    for line in merged([file.lines(whole=True) for file in files]):
        assert line.begins or (before is not None and before.rank == line.rank)
        before = line


@given(logs=LOGS)
def test_sorted_logs_make_one_sorted_log(tmp_path_factory: pytest.TempPathFactory, logs: list[list[Record]]) -> None:
    logs = [sorted(records, key=lambda record: record[0]) for records in logs]
    found = list(RunLogs(written(tmp_path_factory.getbasetemp(), logs).folder).lines(whole=True))
    order = [(line.time, line.rank) for line in found]
    assert order == sorted(order)  # of equal times, the lower rank comes first


@given(logs=LOGS, cut=st.integers(0, 400), chunk=st.integers(1, 99))
def test_lines_that_come_in_two_parts_are_the_same(
    tmp_path_factory: pytest.TempPathFactory, logs: list[list[Record]], cut: int, chunk: int
) -> None:
    run = written(tmp_path_factory.getbasetemp(), logs).folder
    for rank in range(len(logs)):
        path = run / "logs" / f"rank_{rank}.log"
        content = path.read_bytes()
        path.write_bytes(content[:cut])
        file = LogFile(path, rank, chunk)
        first = texts(file.lines(whole=False))
        with path.open("ab") as more:
            more.write(content[cut:])
        assert first + texts(file.lines(whole=False)) == content.split(b"\n")[:-1]


def test_a_log_that_is_begun_anew_is_read_from_its_begin(tmp_path: Path) -> None:
    run = FakeRun(tmp_path).log(0, [head(1), head(2)], b"torn")
    logs = RunLogs(tmp_path)
    assert len(texts(logs.lines(whole=False))) == 2
    run.log(0, [head(3)])  # truncated
    assert texts(logs.lines(whole=False)) == [head(3)]
    (tmp_path / "new").write_bytes(head(4) + b"\n" + head(5) + b"\n" + head(6) + b"\n")
    os.replace(tmp_path / "new", tmp_path / "logs" / "rank_0.log")  # another file, and a longer one
    assert texts(logs.lines(whole=False)) == [head(4), head(5), head(6)]


def test_new_files_removed_files_and_what_is_no_file(tmp_path: Path) -> None:
    run = FakeRun(tmp_path)
    logs = RunLogs(tmp_path)
    assert texts(logs.lines(whole=False)) == []
    run.log(0, [head(1)])
    assert texts(logs.lines(whole=False)) == [head(1)]
    run.log(12, [head(2)])
    os.mkfifo(tmp_path / "logs" / "rank_3.log")
    (tmp_path / "logs" / "other.log").write_bytes(head(3))
    (tmp_path / "logs" / "rank_0.log").unlink()
    assert texts(logs.lines(whole=False)) == [head(2)]
    assert logs.problems == {"rank_3.log": "is not a regular file"}
    assert logs.ranks() == [3, 12]
    assert RunLogs(tmp_path, [12]).ranks() == [12]


def test_lines_before_the_first_record_come_first(tmp_path: Path) -> None:
    FakeRun(tmp_path).log(0, [head(1)]).log(1, [b"the end of something", head(0)])
    found = list(RunLogs(tmp_path).lines(whole=True))
    assert [(line.text, line.level) for line in found] == [(b"the end of something", 0), (head(0), 20), (head(1), 20)]


def test_a_long_line_comes_in_parts_that_are_no_records(tmp_path: Path) -> None:
    long = head(1) + b" " + (b"x" * (LONGEST - 1 - len(head(1)))) + head(0) + b"y" * LONGEST
    FakeRun(tmp_path).log(0, [long, head(2)])
    found = list(RunLogs(tmp_path).lines(whole=True))
    assert b"".join(line.text for line in found) == long + head(2)
    assert [line.begins for line in found] == [True, *[False] * (len(found) - 2), True]
    assert max(len(line.text) for line in found) <= LONGEST


def test_memory_does_not_grow_with_the_logs(tmp_path: Path) -> None:
    run = FakeRun(tmp_path)
    for rank in range(4):
        run.log(rank, [head(number % 10) for number in range(10_000)], b"z" * 2**21)
    tracemalloc.start()
    count = sum(1 for _ in RunLogs(tmp_path).lines(whole=True))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count >= 4 * 10_000
    assert peak < 2**21


def test_whoever_follows_gets_all_lines_until_the_run_has_ended(tmp_path: Path) -> None:
    run = FakeRun(tmp_path).log(0, [head(1)])
    happens = iter([lambda: run.log(1, [head(2)], b"tor"), lambda: run.log(1, [head(2)], b"torn"), lambda: None])
    done: list[bool] = []

    def wait() -> None:
        step = next(happens)
        step()
        done.append(len(done) == 2)

    found = texts(follow(RunLogs(tmp_path), lambda: bool(done and done[-1]), wait))
    assert found == [head(1), head(2), b"torn"]
