"""The step benchmark's own arithmetic, and the records that its arms train on."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from benchmarks.step import measure, report
from benchmarks.step.__main__ import _parse
from benchmarks.step.arms import AGAIN, OURS, SUITES, Arm
from benchmarks.step.torch_task import TorchStep
from benchmarks.step.workload import LR, MODELS, SEED, inputs, own_ids
from hvdtrain.comm.communicator import SerialCommunicator
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.run.prepare import fixed_batch, prepare
from hvdtrain.topology import Topology

PRINTS = 'import json; print("[1,0]<stdout>:" + json.dumps({"iterations": [16.0, 32.0, 64.0], "loss": 0.5}))'


def test_hand_written_arms_train_on_hvdtrain_s_batch(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVDTRAIN_CACHE_DIR", str(tmp_path))
    config = TrainConfig(batch_size=MODELS["mlp"].batch, seed=SEED)
    setup = prepare(config, TorchStep, SerialCommunicator(Topology.single()))
    batch = fixed_batch(setup)
    ids = own_ids("mlp", 0, 1)
    np.testing.assert_array_equal(batch.ids, ids)
    np.testing.assert_array_equal(batch.features["x"], inputs("mlp", ids))
    assert setup.schedule.peak == LR
    parts = np.concatenate([own_ids("mlp", rank, 2) for rank in (0, 1)])
    assert len(set(parts.tolist())) == 2 * MODELS["mlp"].batch  # no worker has another's records


def test_a_run_s_figure_is_the_median_of_its_iterations() -> None:
    arm = Arm("none", "a script", ("python", "-c", PRINTS), "-np", ())
    measured = measure.measure(arm, 2, "mlp", (1, 1, 1), "/tmp")
    assert (measured.seconds, measured.loss) == (16 / 32.0, 0.5)
    with pytest.raises(RuntimeError, match="exit code 3"):
        measure.measure(Arm("none", "a script", ("python", "-c", "exit(3)"), "-np", ()), 2, "mlp", (1, 1, 1), "/tmp")


def test_every_arm_gets_the_protocol_s_counts() -> None:
    for suite in SUITES.values():
        for arm in suite.arms.values():
            argv = " ".join(arm.argv(2, suite.name, (5, 10, 4)))
            assert f"--model {suite.name}" in argv
            assert "--num-warmup-batches 5 --num-batches-per-iter 10 --num-iters 4" in argv


def test_suites_that_need_a_gpu_are_refused_without_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for found, code in (([], 2), (["NVIDIA H100"], None)):
        monkeypatch.setattr("benchmarks.machine.gpus", lambda found=found: found)
        assert ("resnet50-gpu" in _suites([])) is bool(found)
        if code is None:
            assert _suites(["--suites", "resnet50-gpu"]) == ["resnet50-gpu"]
            continue
        with pytest.raises(SystemExit) as ended:
            _suites(["--suites", "resnet50-gpu"])
        assert ended.value.code == code
        assert "resnet50-gpu needs a GPU" in capsys.readouterr().err


def _suites(words: list[str]) -> list[str]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", ["step", *words])
        suites: list[str] = _parse().suites
        return suites


def test_the_page_says_first_what_is_no_win_and_brackets_what_chance_explains() -> None:
    blocks = [{OURS: 0.010, AGAIN: again, "ddp": 0.020, "horovod": 0.0101} for again in (0.0101, 0.0099, 0.0102)]
    suite = {"blocks": blocks, "loss_difference": 1e-6, "counts": [5, 10, 4]}
    machine = {"cpu": "c", "cores": 2, "memory_gib": 1, "kernel": "6", "python": "3", "commit": "x", "load": [0.0]}
    result = {
        "date": "2026-01-01T00:00:00",
        "np": 2,
        "machine": {**machine, "load_at_end": [0.1]},
        "versions": {"torch": "2"},
        "suites": {"mlp": suite},
    }
    page = report.markdown(json.loads(json.dumps(result)))
    assert "| torchrun | DDP (Gloo) by hand | 20 | 0.50 (0.50–0.50) |" in page
    assert "| mpirun | Horovod by hand | 10.1 | [0.99 (0.99–0.99)] |" in page
    assert "| mpirun | hvdtrain | 10 | 1 |" in page
    assert "**Not a win** (ours / theirs): Horovod by hand, mpirun 0.99 (0.99–0.99).\n" in page
    assert "**Goal**, at most 0.80 of DDP's better arm: 0.50 (0.50–0.50), reached.\n" in page
    assert "**Goal**, at most 0.70 of Horovod by hand with its defaults: 0.99 (0.99–0.99), not reached.\n" in page
