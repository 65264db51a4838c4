"""`hvdtrain bench step` in one process: what it prints, what its numbers mean, and what it refuses."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commands import Ended, Forker

from hvdtrain.comm.communicator import SerialCommunicator
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.run.bench_step import Protocol, measure
from hvdtrain.run.prepare import RunSetup, fixed_batch, prepare
from hvdtrain.run.start import open_adapter
from hvdtrain.tasks.torch import TorchDigits
from hvdtrain.topology import Topology

SHORT = ["--num-warmup-batches", "1", "--num-iters", "3", "--num_batches_per_iter=2"]
SMALL = ["--task", "synthetic", "--model", "cnn", "--task-args.side", "16"]


@pytest.fixture
def cache(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"HVDTRAIN_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}


def bench(forker: Forker, folder: Path, cache: dict[str, str], *argv: str) -> Ended:
    ended = forker.run(["bench", "step", *argv], folder, cache)
    assert ended.code == 0, ended
    assert list(folder.iterdir()) == []  # no run folder
    return ended


def test_it_prints_what_horovod_s_script_prints(forker: Forker, tmp_path: Path, cache: dict[str, str]) -> None:
    lines = bench(forker, tmp_path, cache, *SMALL, *SHORT).stdout.splitlines()
    assert lines[:3] == ["Model: cnn", "Batch size: 32", "Number of CPUs: 1"]  # 32: as in Horovod's protocol
    assert [re.sub(r"[\d.]+ img", "N img", line) for line in lines[3:6]] == [
        f"Iter #{number}: N img/sec per CPU" for number in range(3)
    ]
    assert re.fullmatch(r"Img/sec per CPU: \d+\.\d \+-\d+\.\d", lines[6])
    assert re.fullmatch(r"Total img/sec on 1 CPU\(s\): \d+\.\d \+-\d+\.\d", lines[7])
    assert "waiting for allreduce" in "\n".join(lines[8:])


def test_json_says_how_the_numbers_hang_together(forker: Forker, tmp_path: Path, cache: dict[str, str]) -> None:
    argv = [*SMALL, *SHORT, "--batch-size", "3", "--accumulate-steps", "2", "--precision", "bf16", "--json"]
    (line,) = bench(forker, tmp_path, cache, *argv).stdout.splitlines()
    report: dict[str, Any] = json.loads(line)
    speeds = report["iterations"]
    assert len(speeds) == 3
    assert report["per_worker"] == pytest.approx({"mean": np.mean(speeds), "interval": 1.96 * np.std(speeds)})
    assert report["total"] == report["per_worker"]  # one worker
    (split,) = report["seconds_per_step"]
    assert split["step"] == pytest.approx(split["compute"] + split["allreduce"])
    assert split["step"] == pytest.approx(np.mean([6 / speed for speed in speeds]))
    assert (report["batch_size"], report["global_batch_size"]) == (6, 6)
    assert report["knobs"] == {"accumulate_steps": 2, "precision": "bf16"}
    assert report["protocol"] == {"warmup_batches": 1, "batches_per_iter": 2, "iters": 3}


def test_each_virtual_worker_has_the_default_batch(forker: Forker, tmp_path: Path, cache: dict[str, str]) -> None:
    (line,) = bench(forker, tmp_path, cache, *SMALL, *SHORT, "--virtual-workers", "2", "--json").stdout.splitlines()
    report: dict[str, Any] = json.loads(line)
    assert (report["batch_size"], report["global_batch_size"]) == (64, 64)


def test_other_tasks_count_records(forker: Forker, tmp_path: Path, cache: dict[str, str]) -> None:
    text = tmp_path / "text"
    text.mkdir()
    (text / "any.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 20)
    argv = ["--task", "text", "--data.dir", str(text), "--task-args.context", "8", "--task-args.width", "8"]
    (tmp_path / "here").mkdir()
    stdout = bench(forker, tmp_path / "here", cache, *argv, *SHORT, "--batch-size", "2").stdout
    assert "Model: text\n" in stdout
    assert "Record/sec per CPU: " in stdout


def setup(batch: int) -> RunSetup:
    config = TrainConfig(batch_size=batch, lr=0.01)
    return prepare(config, TorchDigits, SerialCommunicator(Topology.single()))


def test_its_steps_are_training_s_own(cache: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss that it reports is that of as many steps of the adapter on the first batch of training."""
    monkeypatch.setenv("HVDTRAIN_CACHE_DIR", cache["HVDTRAIN_CACHE_DIR"])
    ready = setup(8)
    report = measure(ready, SerialCommunicator(Topology.single()), Protocol(3, 2, 2), lambda _: None)
    adapter = open_adapter(ready.task, Topology.single(), ready.config.seed, ready.schedule.peak, ready.config)
    with ready.train.loader(0, 0) as loader:
        batch = next(iter(loader))
    for step in range(7):
        if step == 5:
            adapter.read_sums()
        adapter.train_step(batch, step, 0.01)
    assert report["loss"] == pytest.approx(adapter.read_sums().values["loss"] / (2 * 8), rel=1e-6)
    assert report["parameters"] == adapter.parameter_count()


def test_every_slot_of_the_batch_counts(cache: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the data set is smaller than a batch, records fill it twice, and the device works on all of it."""
    monkeypatch.setenv("HVDTRAIN_CACHE_DIR", cache["HVDTRAIN_CACHE_DIR"])
    ready = setup(2000)  # of 1,500 or so
    batch = fixed_batch(ready)
    assert (len(batch.ids), float(batch.weights.sum()), batch.global_weight) == (2000, 2000.0, 2000.0)
    assert fixed_batch(replace(ready, epochs=3)).ids.tolist() == batch.ids.tolist()


REFUSED = {
    "counts": (["--num-iters", "0"], "--num-iters is 0. It must be 1 or more."),
    "no number": (["--num-iters", "many"], "argument --num-iters: invalid int value: 'many'"),
    "misspelt": (["--num-iter", "3"], "did you mean '--num-iters'?"),
    "unknown": (["--sizes", "4B"], "There is no option --sizes."),
    "no effect": (["--output-dir", "out"], "--output-dir is given to `hvdtrain bench step`."),
    "no epochs": (["--epochs=3"], "there are no epochs, no validation and no run folder."),
    "pipes": (["--data.mode", "pipe"], "--data.mode is pipe."),
    "of train's": (["--accumulate-steps", "0"], "--accumulate-steps is 0. It must be 1 or more."),
    "a model": (["--model", "resent50"], "did you mean 'resnet50'?"),
    "a batch": (["--model", "resnet18", "--batch-size", "1"], "BatchNorm takes its statistics from"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_calls_measure_nothing(forker: Forker, tmp_path: Path, cache: dict[str, str], case: str) -> None:
    argv, fact = REFUSED[case]
    ended = forker.run(["bench", "step", "--task", "synthetic", *argv], tmp_path, cache)
    ended.require_refusal(fact)
    assert ended.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_config_file_of_a_whole_training_is_welcome(forker: Forker, tmp_path: Path, cache: dict[str, str]) -> None:
    """Only options are refused: the file says more than a step needs."""
    file = tmp_path / "run.yaml"
    file.write_text("task: synthetic\nmodel: cnn\ntask_args: {side: 16}\nepochs: 3\noutput_dir: out\n")
    (tmp_path / "here").mkdir()
    bench(forker, tmp_path / "here", cache, "--config", str(file), "--batch-size", "2", *SHORT)
