"""--data.on-corrupt: damaged records are left out, counted and named, and too many of them end the run."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.numpy_training import WIDTH, Recorder, Run, Setting, train, write_data
from support.ranks import all_well, run_on_ranks

import data_sharding as ds
from hvdtrain.audit.audit_summary import read_coverage
from hvdtrain.comm.communicator import SerialCommunicator
from hvdtrain.data.catalog_source import require_little_lost, warn_of_damage
from hvdtrain.engine import events
from hvdtrain.engine.limits import RunLimits
from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.named_arrays import State
from hvdtrain.topology import Topology

BAD = (3, 11)
EPOCHS = 2


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    """Data whose records 3 and 11 are damaged after they were indexed, and a run that masks such."""
    data = write_data(tmp_path / "data", train=22, validation=9)
    for record in BAD:
        path = Path(data.train.files[data.train.file_ids[record]].path)
        content = bytearray(path.read_bytes())
        content[int(data.train.offsets[record]) + 1] ^= 0x40
        path.write_bytes(content)
    indexed = ds.Catalog.index(data.folder / "train-*.tfrecord")
    return Setting(replace(data, train=indexed), tmp_path / "run", on_corrupt="mask")


def alone(setting: Setting, max_masked: float = 1.0) -> Run:
    return train(setting, SerialCommunicator(Topology.single()), RunLimits(EPOCHS, max_masked=max_masked), None, None)


def masked(recorder: Recorder) -> int:
    return sum(event.masked for event in recorder.events if isinstance(event, events.Logged))


def weights(state: State) -> list[np.ndarray]:
    return [array for name, array in sorted(state.items()) if "weights" in name or "bias" in name]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_masked_records_are_counted_and_named(setting: Setting, size: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "hvdtrain.data"):
        runs = all_well(run_on_ranks(size, lambda comm: train(setting, comm, RunLimits(EPOCHS), None, None)))
    assert masked(runs[0].events) == len(BAD) * EPOCHS
    report = read_coverage(setting.folder)
    assert report.exact
    assert [epoch.damaged for epoch in report.epochs] == [BAD] * EPOCHS
    for record in BAD:
        where = setting.data.train.describe(record)
        why = "Its data does not match its stored CRC."
        assert f"record {record} is damaged or refused, and was skipped: {where}: {why}" in caplog.text
    single = alone(replace(setting, folder=setting.folder.with_name("alone")))
    for one, other in zip(weights(runs[0].adapter.state()), weights(single.adapter.state()), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def test_what_is_damaged_teaches_nothing(setting: Setting) -> None:
    """Whatever bytes a damaged record holds, the weights are the same."""
    once = alone(setting)
    for record in BAD:
        path = Path(setting.data.train.files[setting.data.train.file_ids[record]].path)
        content = bytearray(path.read_bytes())
        content[int(setting.data.train.offsets[record]) + 2] ^= 0x21
        path.write_bytes(content)
    data = replace(setting.data, train=ds.Catalog.index(setting.data.folder / "train-*.tfrecord"))
    again = alone(replace(setting, data=data, folder=setting.folder.with_name("again")))
    for one, other in zip(weights(once.adapter.state()), weights(again.adapter.state()), strict=True):
        np.testing.assert_array_equal(one, other)


def test_too_many_end_the_run(setting: Setting) -> None:
    with pytest.raises(HvdtrainError, match="2 of the 22 training records are damaged"):
        alone(setting, max_masked=0.05)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("step", [3, 4, 5])
def test_a_resumed_epoch_counts_those_before_the_checkpoint_too(setting: Setting, step: int, size: int) -> None:
    """So an interrupted run ends as an uninterrupted one, also where more ranks go on; each epoch counts anew."""
    first = RunLimits(EPOCHS, max_steps=step, log_interval=1)
    train(setting, SerialCommunicator(Topology.single()), first, None, None)
    saved = setting.store().newest()
    assert saved is not None

    def resumed(share: float) -> list[Run | BaseException]:
        limits = RunLimits(EPOCHS, max_masked=share)
        elsewhere = replace(setting, folder=setting.folder / str(share))
        return run_on_ranks(size, lambda comm: train(elsewhere, comm, limits, saved.position, saved.state))

    assert all(run.outcome.finished for run in all_well(resumed(2 / 22)))
    for error in resumed(1 / 22):
        assert "2 of the 22 training records are damaged" in str(error)


def test_quarantine_keeps_the_bytes(setting: Setting, tmp_path: Path) -> None:
    alone(replace(setting, on_corrupt="quarantine", quarantine=tmp_path / "kept"))
    catalog = setting.data.train
    for record in BAD:
        content = Path(catalog.files[catalog.file_ids[record]].path).read_bytes()
        begin = int(catalog.offsets[record])
        kept = (tmp_path / "kept" / f"record_{record}.bin").read_bytes()
        assert kept == content[begin : begin + int(catalog.lengths[record])]
        what = (tmp_path / "kept" / f"record_{record}.txt").read_text()
        assert what == f"{catalog.describe(record)}: Its data does not match its stored CRC.\n"


def test_of_an_item_without_stored_bytes_quarantine_keeps_the_place(setting: Setting, tmp_path: Path) -> None:
    class Items(list[bytes]):
        def __getitem__(self, number: Any) -> Any:
            if number in BAD:
                raise ds.BadRecord("it has no label")
            return super().__getitem__(number)

    row = np.zeros(WIDTH + 1, np.float32).tobytes()
    data = replace(setting.data, train=ds.Catalog.of(Items([row] * 22)))
    alone(replace(setting, data=data, on_corrupt="quarantine", quarantine=tmp_path / "kept"))
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {f"record_{record}.txt" for record in BAD}
    assert "it has no label" in (tmp_path / "kept" / f"record_{BAD[0]}.txt").read_text()


def test_lost_framing_counts_in_bytes_and_is_named(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    path = Path(setting.data.train.files[1].path)
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    catalog = ds.Catalog.index(setting.data.folder / "train-*.tfrecord", on_corrupt="mask")
    assert 0 < catalog.lost_bytes < 100
    share = catalog.lost_bytes / sum(file.size for file in catalog.files)
    require_little_lost([catalog], share + 1e-9)
    with pytest.raises(UsageError, match="lie behind damage after which no record can be found") as caught:
        require_little_lost([catalog], share - 1e-9)
    assert str(path) in caught.value.fact
    warn_of_damage([catalog])
    assert f"damaged data: {path} ends inside record" in caplog.text


def test_a_quarantine_that_cannot_be_written(setting: Setting, tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"")
    with pytest.raises(HvdtrainError, match="could not be kept in"):
        alone(replace(setting, on_corrupt="quarantine", quarantine=tmp_path / "kept"))


def test_the_default_is_to_stop(setting: Setting) -> None:
    with pytest.raises(ds.CorruptRecordError, match="is damaged"):
        alone(replace(setting, on_corrupt="raise"))
