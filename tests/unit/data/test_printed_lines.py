"""Lines that decode code prints are shown once a rank, whatever thread or process prints them; the rest passes."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_sharding import Catalog, ShardLoader, ShardPlan, write_shards
from hvdtrain.data.printed_lines import PRINTED, HandingDecode, PrintedLines, SortingReader, printed_once
from hvdtrain.data.random_draws import ReportedProcesses

WAIT_S = 60.0


def test_threads_show_a_line_once_and_say_how_often_it_came(capsys: pytest.CaptureFixture[str]) -> None:
    lines = PrintedLines()

    def decode(number: int) -> None:
        with lines.sorted_out():
            print("shape", (3, 32))
            print("record", number)
            print("careful", file=sys.stderr)

    before = sys.stdout, sys.stderr
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(decode, range(50), timeout=WAIT_S))
    assert (sys.stdout, sys.stderr) == before
    shown = capsys.readouterr()
    assert sorted(shown.out.splitlines()) == sorted(["shape (3, 32)", *(f"record {number}" for number in range(50))])
    assert shown.err == "careful\n"
    assert [sentence.partition("printed ")[2] for sentence in lines.repeated()] == [
        "this line again (49 times): shape (3, 32)",
        "this line again (49 times): careful",
    ]


RACE = """
import sys, threading
from hvdtrain.data.printed_lines import PRINTED
sys.setswitchinterval(1e-6)
ended = []

def decode():
    while not ended:
        with PRINTED.sorted_out():
            pass

threading.Thread(target=decode).start()
try:
    for number in range(100_000):
        print("step", number, "of", "many", "loss", 0.5)
finally:
    ended.append(True)
"""


def test_another_thread_may_print_at_any_moment() -> None:
    """`print()` uses `sys.stdout` without holding a reference to it, so that the process crashed in most such runs."""
    done = subprocess.run([sys.executable, "-c", RACE], stdout=subprocess.PIPE, timeout=WAIT_S, check=True)
    assert done.stdout.count(b"\n") == 100_000
    assert done.stdout.endswith(b"step 99999 of many loss 0.5\n")


def test_what_is_not_printed_by_that_code_passes(capsys: pytest.CaptureFixture[str]) -> None:
    lines, begun, ends = PrintedLines(), threading.Event(), threading.Event()

    def decode() -> None:
        with lines.sorted_out():
            begun.set()
            ends.wait(WAIT_S)

    thread = threading.Thread(target=decode)
    thread.start()
    assert begun.wait(WAIT_S)
    for _ in range(3):
        print("loss")
    assert sys.stdout.encoding.lower() == "utf-8"
    ends.set()
    thread.join(WAIT_S)
    for _ in range(3):
        with lines.sorted_out():
            print("50 %", end="\r")
    assert capsys.readouterr().out == "loss\n" * 3 + "50 %\r" * 3
    assert lines.repeated() == []


def test_a_stream_that_was_put_in_front_stays(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = PrintedLines()
    with lines.sorted_out():
        ours = sys.stdout
        monkeypatch.setattr("sys.stdout", sys.__stdout__)
    assert sys.stdout is sys.__stdout__
    monkeypatch.setattr("sys.stdout", ours)  # as a redirection does at its end
    for _ in range(2):
        print("loss")
        with lines.sorted_out():
            print("shape")
    assert capsys.readouterr().out == "loss\nshape\nloss\n"


_WARNS = """
import warnings
from hvdtrain.data.printed_lines import PRINTED
warnings.simplefilter("always")
for _ in range(9):
    with PRINTED.sorted_out():
        warnings.warn("truncated image")
"""


def test_warnings_of_every_record_are_lines() -> None:
    shown = subprocess.run([sys.executable, "-c", _WARNS], capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert shown.stderr.splitlines() == ["<string>:7: UserWarning: truncated image"]


def test_more_lines_than_are_remembered_are_all_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hvdtrain.data.printed_lines._MOST_REMEMBERED", 3)
    lines = PrintedLines()
    for number in [0, 1, 2, 3, 4, 0, 3]:
        with lines.sorted_out():
            print(number)
    assert capsys.readouterr().out.split() == ["0", "1", "2", "3", "4", "3"]


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    (tmp_path / "data").mkdir()
    write_shards(tmp_path / "data", "train", [b"%d" % number for number in range(40)], 1)
    return Catalog.index(tmp_path / "data")


_MODULE = """
import numpy as np
def decode(records):
    print("decoding")
    if b"13" in records.payloads:
        print("thirteen")
    return {"x": np.array([int(payload) for payload in records.payloads])}
def fails(records):
    print("failing")
    raise ValueError("no")
"""


@pytest.fixture
def decoders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "printing_decoders.py").write_text(_MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import printing_decoders  # type: ignore[import-not-found]

    yield printing_decoders
    del sys.modules["printing_decoders"]


def test_decode_processes_hand_their_lines_to_the_rank(
    catalog: Catalog, decoders: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    plan = ShardPlan.for_catalog(catalog, global_batch=4, seed=1, epoch=0)
    decode = HandingDecode(SortedDecode(decoders.decode))
    with printed_once(), SortingReader(catalog) as reader, ReportedProcesses(reader, decode, 3) as processes:
        for _ in range(2):
            with ShardLoader(plan, reader, processes, rank=0, size=1, timeout_s=WAIT_S) as loader:
                batches = list(loader)
                assert [list(batch.features) for batch in batches] == [["x"]] * 10
                assert sorted(np.concatenate([batch.features["x"] for batch in batches])) == list(range(40))
    out = capfd.readouterr().out.splitlines()
    assert sorted(out[:2]) == ["decoding", "thirteen"]
    assert [line.partition("printed ")[2] for line in out[2:]] == [
        "this line again (19 times): decoding",
        "this line again (1 times): thirteen",
    ]


def test_what_a_failing_process_printed_is_not_lost(
    catalog: Catalog, decoders: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    decode = HandingDecode(SortedDecode(decoders.fails))
    with SortingReader(catalog) as reader, ReportedProcesses(reader, decode, 1) as processes:
        with pytest.raises(ValueError, match="no"):
            processes(np.arange(3), None)
        assert "failing" in capfd.readouterr().out


def test_logging_is_not_sorted_out(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        with PRINTED.sorted_out():
            logging.getLogger("of.a.task").warning("again")
    assert len(caplog.records) == 2


class SortedDecode:
    """As `TensorDecode`, of a function."""

    def __init__(self, decode: Any) -> None:
        self._decode = decode

    def __call__(self, records: Any) -> Any:
        with PRINTED.sorted_out():
            return self._decode(records)
