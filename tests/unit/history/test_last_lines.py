"""The end of a file is the same however it is read, and no more of the file is read than that."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.history.reading import UnusableFileError, last_lines, read_bounded


@given(content=st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\n", b"\xff"])).map(b"".join), chunk=st.integers(1, 9))
def test_all_whole_lines_backwards_for_any_chunk(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, chunk: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "lines"
    path.write_bytes(content)
    assert list(last_lines(path, chunk=chunk)) == content.split(b"\n")[:-1][::-1]


@given(
    lines=st.lists(st.binary(max_size=5).map(lambda line: line.replace(b"\n", b"")), max_size=20),
    most=st.integers(1, 60),
    chunk=st.integers(1, 9),
)
def test_what_does_not_lie_within_the_limit_is_left_out(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], most: int, chunk: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "lines"
    content = b"".join(line + b"\n" for line in lines)
    path.write_bytes(content)
    found = list(last_lines(path, most, chunk))
    assert found == lines[::-1][: len(found)]
    left = sum(len(line) + 1 for line in found)
    assert left <= most
    if len(found) < len(lines):
        assert left + len(lines[-1 - len(found)]) + 1 >= most  # the next one would not have fitted, or only just


def test_of_ten_gigabytes_only_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with path.open("wb") as file:
        file.truncate(10 * 2**30)  # a hole, which needs no disk
        file.seek(0, os.SEEK_END)
        file.write(b"\nfirst\nlast\n")
    assert list(last_lines(path, most=2**20))[:2] == [b"last", b"first"]


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UnusableFileError, match="not a regular file"):
        list(last_lines(tmp_path / "fifo"))
    with pytest.raises(UnusableFileError, match="not a regular file"):
        read_bounded(tmp_path / "fifo", 10)


def test_a_file_that_is_too_large_is_not_read_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(11))
    assert read_bounded(tmp_path / "file", 11) == bytes(11)
    with pytest.raises(UnusableFileError, match="is larger than"):
        read_bounded(tmp_path / "file", 10)
