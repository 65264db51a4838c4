"""The audit of a run tells what the weights have seen: exactly once through crashes and world sizes, or who is not."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.numpy_training import Data, NumpyAdapter, Setting, train, write_data
from support.ranks import run_on_ranks

import data_sharding as ds
from hvdtrain.audit.audit_summary import CoverageReport, read_coverage
from hvdtrain.audit.ledger import CATALOG, LEDGER, PIPE_NOTE, copy_audit
from hvdtrain.checkpoints.format import read_checkpoint
from hvdtrain.cli.shard import run as shard
from hvdtrain.comm.communicator import Communicator
from hvdtrain.engine.limits import RunLimits
from hvdtrain.errors import UsageError

EPOCHS, STEPS = 2, 6  # 22 records in global batches of 8: 3 steps an epoch
RECORDS = 22


class CrashError(Exception):
    """Ends a run in the middle of a step."""


class Crashing(NumpyAdapter):
    """Raises in the update that would be number `at`."""

    def __init__(self, at: int, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._at = at

    def train_step(self, batch: ds.LoadedBatch, step: int, lr: float) -> None:
        if step == self._at:
            raise CrashError
        super().train_step(batch, step, lr)


def crashing(at: int) -> Callable[[Any, Communicator, int], Crashing]:
    return lambda task, comm, seed: Crashing(at, task, comm, seed)


def go_on(setting: Setting, size: int, limits: RunLimits, crash_at: int) -> None:
    """Continue the run from its newest checkpoint, on `size` ranks, perhaps into a crash."""
    newest = setting.store().newest()
    position, state = (newest.position, newest.state) if newest else (None, None)
    run = replace(setting, open_adapter=crashing(crash_at))
    for ended in run_on_ranks(size, lambda comm: train(run, comm, limits, position, state)):
        if isinstance(ended, BaseException) and crash_at >= STEPS:
            raise ended


@pytest.fixture
def finished(data: Data, tmp_path: Path) -> Path:
    """A run of two epochs on two ranks, with a checkpoint after every second step."""
    go_on(Setting(data, tmp_path), 2, RunLimits(EPOCHS, checkpoint_interval=2), crash_at=STEPS)
    return tmp_path


def epochs_exactly(report: CoverageReport) -> list[tuple[bool, bool, int]]:
    return [(epoch.finished, epoch.exact, epoch.audit.count) for epoch in report.epochs]


@settings(deadline=None, max_examples=25)
@given(
    parts=st.lists(st.tuples(st.integers(1, 4), st.integers(0, STEPS - 1)), max_size=4),
    interval=st.integers(0, 3),
    last_size=st.integers(1, 4),
    per_call=st.integers(1, 4),
)
def test_every_record_once_through_crashes_and_world_sizes(
    data: Data, parts: list[tuple[int, int]], interval: int, last_size: int, per_call: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        setting = Setting(data, Path(name))
        limits = RunLimits(EPOCHS, checkpoint_interval=interval, steps_per_call=per_call)
        for size, crash_at in parts:
            go_on(setting, size, limits, crash_at)
        go_on(setting, last_size, limits, crash_at=STEPS)
        report = read_coverage(Path(name))
    assert epochs_exactly(report) == [(True, True, RECORDS)] * EPOCHS
    assert report.exact


def test_a_run_that_stopped_inside_an_epoch(data: Data, tmp_path: Path) -> None:
    go_on(Setting(data, tmp_path), 3, RunLimits(EPOCHS, max_steps=4), crash_at=STEPS)
    assert epochs_exactly(read_coverage(tmp_path)) == [(True, True, RECORDS), (False, True, 8)]


def test_verify_says_so(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shard(["verify", str(finished)]) == 0
    assert "exact: each of 2 finished epochs used every one of 22 records once" in capsys.readouterr().out


def test_missing_and_repeated_records_are_named(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The audit of a run that read record 5 twice and never record 7."""
    catalog = ds.Catalog.load(finished / "audit" / CATALOG)
    segment = finished / "audit" / "segment_00000000-00000002.bin"
    read = np.flatnonzero(ds.CoverageAudit.from_bytes(segment.read_bytes()).to_array())
    twice, never = int(read[0]), int(read[1])
    forged = ds.CoverageAudit(RECORDS)
    forged.add(np.array([twice if record == never else record for record in read]), np.ones(len(read), np.float32))
    segment.write_bytes(forged.to_bytes())
    assert shard(["verify", str(finished)]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert f"epoch 1: record {twice} twice: {catalog.describe(twice)}" in out
    assert f"epoch 1: record {never} missing: {catalog.describe(never)}" in out
    assert "NOT exact" in out


def test_steps_that_nothing_accounts_for(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = finished / "audit" / LEDGER
    lines = ledger.read_text().splitlines()
    ledger.write_text("\n".join(line for line in lines if json.loads(line).get("first") != 2) + "\n")
    assert shard(["verify", str(finished)]) == 1
    assert "epoch 1: nothing accounts for the steps from 2 up to 3" in capsys.readouterr().out


def test_a_run_that_went_back_and_then_forward_again(data: Data, tmp_path: Path) -> None:
    """From step 2 again, killed before its next save; then on from step 4, which is still there."""
    setting = Setting(data, tmp_path)
    go_on(setting, 2, RunLimits(EPOCHS, max_steps=4, checkpoint_interval=2), crash_at=STEPS)
    (older,) = [path for path in setting.store().paths() if path.name == "step_00000002"]
    saved = read_checkpoint(older)
    crash = replace(setting, open_adapter=crashing(3))
    run_on_ranks(1, lambda comm: train(crash, comm, RunLimits(EPOCHS), saved.position, saved.state))
    go_on(setting, 3, RunLimits(EPOCHS), crash_at=STEPS)
    assert epochs_exactly(read_coverage(tmp_path)) == [(True, True, RECORDS)] * EPOCHS


@pytest.mark.parametrize("with_audit", [True, False])
def test_another_runs_checkpoint_brings_its_audit(
    data: Data, tmp_path: Path, with_audit: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    first = Setting(data, tmp_path / "first")
    go_on(first, 2, RunLimits(EPOCHS, max_steps=4), crash_at=STEPS)
    saved = first.store().newest()
    assert saved is not None
    second = Setting(data, tmp_path / "second")
    if with_audit:
        copy_audit(tmp_path / "first" / "audit", tmp_path / "second" / "audit")
    run_on_ranks(1, lambda comm: train(second, comm, RunLimits(EPOCHS), saved.position, saved.state))
    assert shard(["verify", str(second.folder)]) == (0 if with_audit else 1)
    out = " ".join(capsys.readouterr().out.split())
    assert ("the ledger begins at step 4" in out) != with_audit


def test_a_first_start_on_other_data_leaves_no_trace(data: Data, tmp_path: Path) -> None:
    """A run that ended before its first checkpoint, and began again with data that had been repaired."""
    other = write_data(tmp_path / "other", train=22, validation=9)
    path = Path(other.train.files[0].path)
    path.write_bytes(path.read_bytes() * 2)
    damaged = replace(other, train=ds.Catalog.index(other.folder / "train-*.tfrecord"))
    go_on(Setting(damaged, tmp_path / "run"), 1, RunLimits(EPOCHS), crash_at=1)
    go_on(Setting(data, tmp_path / "run"), 1, RunLimits(EPOCHS), crash_at=STEPS)
    assert read_coverage(tmp_path / "run").exact


def test_updates_that_the_ledger_forgot(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = finished / "audit" / LEDGER
    lines = ledger.read_text().splitlines()
    ledger.write_text("\n".join(line for line in lines if json.loads(line).get("end", 0) <= 3) + "\n")
    assert shard(["verify", str(finished)]) == 1
    assert "the newest checkpoint has 3 updates that no line of the audit accounts for" in capsys.readouterr().out


@pytest.mark.parametrize("garbage", [b"garbage", b'{"a": 1}', b"[]", b"\xff\xfe\x00", b'{"event": "segment"}'])
def test_a_ledger_with_garbage_is_refused(finished: Path, garbage: bytes) -> None:
    ledger = finished / "audit" / LEDGER
    first, *others = ledger.read_bytes().splitlines()
    ledger.write_bytes(b"\n".join([first, garbage, *others]) + b"\n")
    with pytest.raises(UsageError, match="line 2 cannot be read"):
        read_coverage(finished)
    ledger.write_bytes(garbage)
    with pytest.raises(UsageError, match="names no start"):
        read_coverage(finished)


def test_modified_files_without_checksums_are_named(
    data: Data, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = np.load(write_rows(tmp_path / "rows.npy", data))
    unchecked = replace(data, train=ds.Catalog.index(tmp_path / "rows.npy", format="npz"))
    setting = Setting(unchecked, tmp_path / "run")
    go_on(setting, 1, RunLimits(EPOCHS, max_steps=2), crash_at=STEPS)
    np.save(tmp_path / "rows.npy", rows[::-1])
    changed = replace(data, train=ds.Catalog.index(tmp_path / "rows.npy", format="npz"))
    go_on(replace(setting, data=changed), 1, RunLimits(EPOCHS), crash_at=STEPS)
    assert "1 data files were modified since this run began" in caplog.text


def write_rows(path: Path, data: Data) -> Path:
    """The training records as an array, whose rows have the bytes of the records."""
    with ds.RecordReader(data.train) as reader:
        np.save(path, [np.frombuffer(record, np.float32) for record in reader.read(np.arange(RECORDS))])
    return path


def test_half_a_line_of_a_killed_run_does_not_count(data: Data, tmp_path: Path) -> None:
    setting = Setting(data, tmp_path)
    go_on(setting, 2, RunLimits(EPOCHS, max_steps=3), crash_at=STEPS)
    with open(tmp_path / "audit" / LEDGER, "a") as ledger:
        ledger.write('{"event": "segment", "first": 3, "e')
    go_on(setting, 1, RunLimits(EPOCHS), crash_at=STEPS)
    assert read_coverage(tmp_path).exact


def test_what_is_no_audit_is_refused(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(UsageError, match="holds no audit"):
        read_coverage(tmp_path_factory.mktemp("empty"))
    (segment,) = (finished / "audit").glob("segment_00000002-*")
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(UsageError, match=f"{segment.name} cannot be read"):
        read_coverage(finished)
    segment.unlink()
    with pytest.raises(UsageError, match="cannot be read"):
        read_coverage(finished)


def test_a_run_from_pipes_says_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / PIPE_NOTE).write_text("")
    with pytest.raises(UsageError, match="was trained from pipes"):
        read_coverage(tmp_path)


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        *((0, "steps_per_epoch", value) for value in (0, -1, True, "9", 1e3)),
        *((1, "first", value) for value in (-5, None, "x", 2**40)),
        *((1, "end", value) for value in ("x", [None], -1, 10**7)),
        *((1, "file", value) for value in (None, 1.5, "../other/segment_00000000-00000030.bin")),
        *((1, "damaged", value) for value in ({"0": None}, ["x"], [10**30], None)),
        *((1, "event", value) for value in ([], {}, "other")),
        (1, "world_size", [None]),
        (-1, "first", 10**9),  # so that no segment lies in a thousand epochs
    ],
)
def test_a_ledger_with_values_of_other_kinds_is_refused(finished: Path, line: int, key: str, value: Any) -> None:
    """None of them may pass for a proof."""
    ledger = finished / "audit" / LEDGER
    lines = [json.loads(text) for text in ledger.read_text().splitlines()]
    lines[line][key] = value
    if key == "first" and line == -1:
        lines[line]["end"] = value + 1
    ledger.write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    with pytest.raises(UsageError, match="is damaged"):
        read_coverage(finished)


@pytest.mark.parametrize("name", [CATALOG, LEDGER, "segment_00000000-00000002.bin"])
def test_a_fifo_in_the_place_of_a_file_is_not_waited_for(finished: Path, name: str) -> None:
    (finished / "audit" / name).unlink()
    os.mkfifo(finished / "audit" / name)
    with pytest.raises(UsageError, match=f"{name} .*device, FIFO or socket"):
        read_coverage(finished)
