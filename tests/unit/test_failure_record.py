"""What a failing worker leaves for its launcher, and that nobody else does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvdtrain import failure_record
from hvdtrain.failure_record import (
    FILE_VARIABLE,
    FailureFile,
    claim_failure_file,
    end_of,
    must_return,
    write_failure,
)

WRITE = "from hvdtrain.failure_record import write_failure; print(write_failure('error', 3, 'a child', 1))"


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch) -> Iterator[FailureFile]:
    """That of a worker which this process is."""
    file = FailureFile()
    monkeypatch.setenv(FILE_VARIABLE, file.place)
    yield file
    failure_record._claimed.clear()
    file.close()


def cause(file: FailureFile) -> str | None:
    record = file.read()
    return record and record.cause


def test_the_last_record_counts(file: FailureFile) -> None:
    assert file.read() is None
    assert write_failure("lost_rank", 3, "x", 1)
    assert write_failure("exception", 3, "y é\n", 1, "z")
    record = file.read()
    assert record is not None
    assert (record.kind, record.rank, record.cause, record.detail) == ("exception", 3, "y é\n", "z")
    assert not record.is_consequence


def test_a_training_that_was_not_done_has_failed_whatever_the_exit_code(file: FailureFile) -> None:
    own = os.getpid()
    with must_return(3):
        code, record = end_of(0, file.read(), own)
        assert code == 1
        assert record is not None
        assert record.cause.startswith("Rank 3 on ")
        assert end_of(-9, file.read(), own) == (-9, None), "the signal says more"
        assert end_of(0, file.read(), own + 1) == (0, None), "of a program that the worker has started"
    assert end_of(0, file.read(), own) == (0, None)
    assert write_failure("error", 3, "x", 2)
    assert end_of(2, file.read(), own) == (2, file.read())


@pytest.mark.parametrize("content", ["", "[]", '{"kind": "stall"}', '{"kind": "st', "\n"])
def test_a_record_that_is_not_whole_counts_for_nothing(file: FailureFile, content: str) -> None:
    Path(file.place.split(":", 2)[2]).write_text(content)
    assert file.read() is None
    Path(file.place.split(":", 2)[2]).write_text("")
    assert write_failure("error", 3, "x", 1)
    with Path(file.place.split(":", 2)[2]).open("a") as end:
        end.write(content)
    assert cause(file) == "x"


def test_without_a_launcher_there_is_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    assert not write_failure("error", 3, "x", 1)
    monkeypatch.setenv(FILE_VARIABLE, "nothing of ours")
    assert not write_failure("error", 3, "x", 1)


def test_another_file_at_the_place_of_a_launcher_that_is_gone_is_left_alone(
    tmp_path: Path, file: FailureFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.write_text("")
    device, inode, _ = file.place.split(":", 2)
    for path in (other, tmp_path / "none"):
        monkeypatch.setenv(FILE_VARIABLE, f"{device}:{inode}:{path}")
        assert not write_failure("error", 3, "x", 1)
    assert other.read_text() == ""
    assert list(tmp_path.iterdir()) == [other]


def test_a_worker_of_the_launcher_writes_and_what_a_worker_starts_does_not(file: FailureFile) -> None:
    def child() -> str:
        return subprocess.run([sys.executable, "-c", WRITE], stdout=subprocess.PIPE, text=True, check=True).stdout

    assert child() == "True\n"
    claim_failure_file()
    assert child() == "False\n"
    assert write_failure("error", 3, "the worker", 1)
    forked = os.fork()
    if forked == 0:
        os._exit(write_failure("error", 3, "a forked child", 1))
    assert os.waitpid(forked, 0)[1] == 0
    assert cause(file) == "the worker"
