"""The simulated agent does what a real one does, and cleans up after itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.pipe_feeding import await_fed

import data_sharding as ds
from data_sharding.pipe.fifo import PassName, await_fifo
from data_sharding.pipe.pipe_plan import make_plan
from data_sharding.pipe.pipe_plan_file import describe_files, save_plan
from data_sharding.pipe.pipe_reader import PipeReader
from data_sharding.pipe.simulator import ChannelFeed, PipeSimulator

TIMEOUT_S = 30.0


@pytest.fixture
def files(data_folder: Path) -> tuple[str, ...]:
    return tuple(str(path) for path in sorted(data_folder.iterdir()))


def fifos(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_fifo())


def read_epoch(reader: PipeReader) -> list[bytes]:
    with reader.open() as one:
        return one.read(10**9)


def test_each_epoch_shuffles_whole_files(tmp_path: Path, files: tuple[str, ...], by_id: list[bytes]) -> None:
    feed = ChannelFeed(files, shuffle=1)
    with PipeSimulator(tmp_path, {"a": feed}, 4), PipeReader(tmp_path, "a", timeout_s=TIMEOUT_S) as reader:
        epochs = [read_epoch(reader) for _ in range(4)]
    assert all(sorted(epoch) == sorted(by_id) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1
    for epoch in (0, 1, 0):
        assert [*feed.chunks(epoch)] == [*ChannelFeed(files, shuffle=1).chunks(epoch)]


def test_channels_do_not_wait_for_each_other(tmp_path: Path, files: tuple[str, ...], by_id: list[bytes]) -> None:
    feeds = {name: ChannelFeed(files) for name in ("a", "b")}
    with PipeSimulator(tmp_path, feeds, 2) as simulator:
        with PipeReader(tmp_path, "b", timeout_s=TIMEOUT_S) as reader:
            assert read_epoch(reader) == read_epoch(reader) == by_id
        time.sleep(0.2)
        assert simulator.is_feeding()
        assert [len(each) for each in simulator.deliveries().values()] == [0, 2]
        assert fifos(tmp_path) == ["a_0"]
    assert fifos(tmp_path) == []


def test_truncation(tmp_path: Path, files: tuple[str, ...]) -> None:
    size = os.path.getsize(files[0])
    feed = ChannelFeed(files, truncate=size + 7)
    with PipeSimulator(tmp_path, {"a": feed}, 1) as simulator, PipeReader(tmp_path, "a", timeout_s=TIMEOUT_S) as reader:
        with pytest.raises(ds.CorruptRecordError, match="it ends 7 bytes into a record") as caught:
            read_epoch(reader)
        await_fed(simulator, TIMEOUT_S)
    assert caught.value.offset == size
    assert simulator.deliveries()["a"][0].bytes == size + 7


@pytest.mark.parametrize("left", [["a_0"], ["a_4"], ["a_11", "a_4"]])
def test_a_fifo_in_the_way(tmp_path: Path, files: tuple[str, ...], left: list[str]) -> None:
    """Whatever its epoch: an agent that died, or still runs, left it there. Nothing is fed then."""
    for name in [*left, "a_b_0"]:
        os.mkfifo(tmp_path / name)
    with (
        pytest.raises(ds.PlanError, match=rf"/{left[-1]} exists already{', and 1 more' * (len(left) - 1)}"),
        PipeSimulator(tmp_path, {"b": ChannelFeed(files), "a": ChannelFeed(files)}, 6),
    ):
        pytest.fail("it began")
    assert fifos(tmp_path) == sorted([*left, "a_b_0"])


def test_a_fifo_that_comes_into_the_way(tmp_path: Path, files: tuple[str, ...]) -> None:
    with (  # noqa: PT012  the error leaves through the simulator
        pytest.raises(ds.PlanError, match="a_1 exists already"),
        PipeSimulator(tmp_path, {"a": ChannelFeed(files)}, 2) as simulator,
        PipeReader(tmp_path, "a", timeout_s=TIMEOUT_S) as reader,
    ):
        await_fifo(PassName(tmp_path, "a", 0, 0), TIMEOUT_S)
        os.mkfifo(tmp_path / "a_1")
        read_epoch(reader)
        await_fed(simulator, TIMEOUT_S)
    assert fifos(tmp_path) == ["a_1"]


def test_what_the_system_refuses(tmp_path: Path, files: tuple[str, ...]) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ds.MissingDataError, match="file cannot be made: File exists"),
        PipeSimulator(tmp_path / "file", {"a": ChannelFeed(files)}, 1),
    ):
        pytest.fail("it began")
    vanishing = tmp_path / "x.tfrecord"
    vanishing.touch()
    with (  # noqa: PT012  the error leaves through the simulator
        pytest.raises(ds.MissingDataError, match=r"Channel a cannot be fed: .*x\.tfrecord"),
        PipeSimulator(tmp_path, {"a": ChannelFeed((str(vanishing),))}, 1) as simulator,
        PipeReader(tmp_path, "a", timeout_s=TIMEOUT_S) as reader,
    ):
        await_fifo(PassName(tmp_path, "a", 0, 0), TIMEOUT_S)
        vanishing.unlink()
        assert read_epoch(reader) == []
        await_fed(simulator, TIMEOUT_S)


def test_stopping_takes_no_longer_with_many_epochs_ahead(tmp_path: Path, files: tuple[str, ...]) -> None:
    with PipeSimulator(tmp_path, {"a": ChannelFeed(files)}, 10**8) as simulator:
        with PipeReader(tmp_path, "a", timeout_s=TIMEOUT_S) as reader:
            read_epoch(reader)
        wait_until(lambda: fifos(tmp_path) == ["a_1"])
        simulator.stop()  # for each of them it would be days
    assert fifos(tmp_path) == []


def test_refused(tmp_path: Path) -> None:
    with pytest.raises(ds.MissingDataError, match="of channel a, does not exist"):
        PipeSimulator(tmp_path, {"a": ChannelFeed(("/nowhere",))}, 1)
    with pytest.raises(ds.PlanError, match="0 channels were to be fed for 1 epochs"):
        PipeSimulator(tmp_path, {}, 1)


def simulate(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "hvdtrain", "shard", "pipe-sim", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_command_feeds_a_plan(tmp_path: Path, data_folder: Path, by_id: list[bytes]) -> None:
    prefix, files = describe_files(data_folder, "tfrecord")
    plan = make_plan(files, workers_per_host=2, prefix=prefix)
    save_plan(plan, tmp_path / "plan")
    base = tmp_path / "fifos"
    base.mkdir()
    with simulate("--dir", base, "--plan", tmp_path / "plan", "--epochs", "2") as process:
        got = []
        for channel in plan.channels:
            with PipeReader(base, channel.name, timeout_s=TIMEOUT_S) as reader:
                for _ in range(2):
                    with reader.open(channel.records) as one:
                        got += one.read(10**9)
        out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    assert sorted(got) == sorted(by_id * 2)
    assert f"train-0: 2 epochs, {2 * plan.channels[0].bytes:,} bytes" in out
    assert fifos(base) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_ends_on_a_signal(tmp_path: Path, files: tuple[str, ...], number: signal.Signals) -> None:
    """One channel waits for its reader, the other one's reader has stopped in the middle."""
    big = ds.write_shards(tmp_path / "data", "x", [bytes(2**20)] * 8, 1)[0]
    base = tmp_path / "fifos"
    base.mkdir()
    with (
        simulate("--dir", base, "--channel", f"a={files[0]}", "--channel", f"b={big}", "--epochs", "9") as process,
        PipeReader(base, "b", timeout_s=TIMEOUT_S, buffer_bytes=1) as reader,
        reader.open() as one,
    ):
        assert len(one.read(1)) == 1
        wait_until(lambda: fifos(base) == ["a_0", "b_0"])
        process.send_signal(number)
        out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 128 + number, err
    assert "a: 0 epochs, 0 bytes" in out
    assert fifos(base) == []


WRONG = {
    "neither": ([], "takes either --plan or --channel"),
    "both": (["--plan", "x", "--channel", "a=b"], "takes either --plan or --channel"),
    "pair": (["--channel", "a"], "--channel a has no value"),
    "glob": (["--channel", "a=/nowhere/*"], "No file matches /nowhere/*"),
    "truncate": (["--channel", "a=README.md", "--truncate", "b:1"], "--truncate names the channel 'b'"),
    "bytes": (["--channel", "a=README.md", "--truncate", "a:x"], "--truncate has 'x' bytes"),
    "epochs": (["--channel", "a=README.md", "--epochs", "0"], "--epochs is 0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_command_called_wrongly(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from hvdtrain.cli.main import main

    arguments, words = WRONG[case]
    assert main(["shard", "pipe-sim", "--dir", str(tmp_path / "fifos"), *arguments]) != 0
    error = capsys.readouterr().err
    assert words in error
    assert "HINT: " in error


def test_the_planning_command(tmp_path: Path, data_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from hvdtrain.cli.main import main

    job = ["--workers-per-host", "2", "--hosts", "2", "--prefix", "s3://bucket/"]
    assert main(["shard", "pipe-plan", str(data_folder), *job, "--out", str(tmp_path / "plan")]) == 0
    out = capsys.readouterr().out
    assert "train-3" in out
    assert "14" in out
    assert "manifests beside it" in out
    assert "--data.pipe-steps" not in out
    assert main(["shard", "pipe-plan", str(data_folder), *job, "--out", str(tmp_path / "two"), "--no-count"]) == 0
    assert "training will need --data.pipe-steps" in capsys.readouterr().out
    (tmp_path / "file").touch()
    assert main(["shard", "pipe-plan", str(data_folder), *job, "--out", str(tmp_path / "file" / "x")]) == 2
    assert "cannot be written: Not a directory." in capsys.readouterr().err


def wait_until(condition: object) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.005)
