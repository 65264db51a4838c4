"""Lines that a killed run, a full disk or somebody's editor has left."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.history.reading import LONGEST, JsonLines, UnusableFileError

OBJECTS = st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(max_size=5), max_size=3)
NOISE = st.binary(max_size=12).filter(lambda raw: b"\n" not in raw and not raw.strip().startswith(b"{"))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lines") / "metrics.jsonl"


@given(lines=st.lists(OBJECTS | NOISE, max_size=8), cut=st.integers(0, 20))
def test_objects_come_back_and_the_rest_is_counted(path: Path, lines: list[Any], cut: int) -> None:
    raw = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    whole = b"".join(line + b"\n" for line in raw)
    path.write_bytes(whole + b'{"event": "checkpoint"}'[:cut])
    told: list[int] = []
    found = JsonLines(path, progress=told.append)
    objects = [line for line in lines if isinstance(line, dict)]
    for _ in range(2):  # it can be read again
        assert list(found) == objects
        assert (found.unreadable, found.torn) == (len(lines) - len(objects), cut > 0)
    assert sum(told) == 2 * path.stat().st_size
    assert len(list(found.problems())) == (len(lines) > len(objects)) + (cut > 0)


def test_only_lines_with_a_word(path: Path) -> None:
    path.write_text('{"event": "started"}\nno JSON\n{"split": "train"}\n{"event": "resumed"}\n')
    lines = JsonLines(path, (b'"started"', b'"resumed"'))
    assert [line["event"] for line in lines] == ["started", "resumed"]
    assert lines.unreadable == 0


@pytest.mark.parametrize("noise", ["[1, 2]", "5", "null", "[" * 5000, "9" * 5000, '{"a": 1', "\x00\x00", "\ud800"])
def test_what_is_no_object_is_left_out(path: Path, noise: str) -> None:
    path.write_text(f'{{"a": 1}}\n{noise}\n{{"b": 2}}\n', errors="surrogatepass")
    lines = JsonLines(path)
    assert list(lines) == [{"a": 1}, {"b": 2}]
    assert list(lines.problems()) == ["One line of metrics.jsonl cannot be read, and is left out."]


def test_a_line_without_an_end_is_never_held_in_memory(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b'{"a": 1}\n')
        file.write(b'{"text": "' + b"x" * (2 * LONGEST) + b'"}\n{"b": 2}\n')
    lines = JsonLines(path)
    assert list(lines) == [{"a": 1}, {"b": 2}]
    assert lines.unreadable == 1


def test_no_file_has_no_lines_and_a_fifo_does_not_block(tmp_path: Path) -> None:
    assert list(JsonLines(tmp_path / "none")) == []
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UnusableFileError):
        list(JsonLines(tmp_path / "fifo"))
