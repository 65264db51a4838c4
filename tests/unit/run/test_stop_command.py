"""`hvdtrain` on the digits in one torch process, asked to stop: its exit code, its words, and what it leaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.commands import Ended, Forker
from support.runs import result_of

from hvdtrain.config.train_config import TrainConfig
from hvdtrain.run.ending import how_to_continue

OWN_TASK = """
import os, signal, threading
from hvdtrain.stop_requests import StopSignals
from hvdtrain.tasks.torch import TorchDigits

noted, note = threading.Event(), StopSignals._note


def note_and_tell(self, number):
    note(self, number)
    noted.set()


StopSignals._note = note_and_tell


class Stopping(TorchDigits):
    batches = 0

    def measure(self, model, batch):
        Stopping.batches += 1
        if str(Stopping.batches) == os.environ.get("STOP_IN_BATCH"):
            os.kill(os.getpid(), signal.SIGTERM)
            assert noted.wait(60)  # by a thread: a whole validation may take less than until that has its turn
        return super().measure(model, batch)
"""
ONE_EPOCH = ["--task", "own:Stopping", "--epochs", "1", "--progress", "lines"]  # 30 steps, then 8 batches to validate

Command = Callable[..., Ended]


@pytest.fixture
def hvdtrain(tmp_path: Path, digits_cache: Path, forker: Forker) -> Command:
    """Runs one epoch in an empty folder, with SIGTERM in a batch."""
    (tmp_path / "own.py").write_text(OWN_TASK)

    def command(*argv: str, stop_in: int | None = None) -> Ended:
        env = {"HVDTRAIN_CACHE_DIR": str(digits_cache), "STOP_IN_BATCH": str(stop_in)}
        return forker.run([*ONE_EPOCH, *argv], tmp_path, env)

    return command


def result(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = result_of(folder)
    return content


def test_stopped_while_training_and_again_while_validating(hvdtrain: Command, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = hvdtrain("--output-dir", "out", stop_in=10)
    assert first.code == 75, first
    step = result(out)["steps"]
    assert 10 <= step < 30
    assert result(out)["status"] == "stopped"
    assert f"stopped by SIGTERM after step {step}, which a checkpoint holds" in first.stdout
    assert first.stdout.endswith("to go on, start the same command again\n")
    second = hvdtrain("--output-dir", "out", stop_in=30 - step + 2)
    assert second.code == 75, second
    assert (result(out)["steps"], result(out)["status"]) == (30, "stopped")
    third = hvdtrain("--output-dir", "out")
    assert third.code == 0, third
    whole = hvdtrain("--output-dir", "whole")
    assert whole.code == 0, whole
    for key in ("status", "steps", "samples_seen", "metrics", "weights", "best", "first_step_loss"):
        assert result(out)[key] == result(tmp_path / "whole")[key], key


def test_max_time(hvdtrain: Command, tmp_path: Path) -> None:
    ended = hvdtrain("--output-dir", "out", "--max-time", "0.001")
    assert ended.code == 75, ended
    assert "stopped by --max-time 0.001 after step 0" in ended.stdout
    assert (tmp_path / "out" / "checkpoints" / "latest").read_text() == "step_00000000\n"
    again = hvdtrain("--output-dir", "out", "--max-time", "1:00:00")
    assert again.code == 0, again
    assert result(tmp_path / "out")["status"] == "finished"


def test_what_to_start_is_said_where_the_same_command_would_not_go_on(hvdtrain: Command, tmp_path: Path) -> None:
    ended = hvdtrain("--resume", "never", stop_in=3)
    assert ended.code == 75, ended
    (folder,) = (tmp_path / "runs").iterdir()
    assert ended.stdout.endswith(f"start the same command again with --output-dir {folder} --resume auto\n")
    again = hvdtrain("--output-dir", str(folder), "--resume", "auto")
    assert again.code == 0, again


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (TrainConfig(output_dir="out"), "start the same command again"),
        (TrainConfig(), "start the same command again with --output-dir /runs/x"),
        (TrainConfig(output_dir="out", resume="other"), "start the same command again with --resume auto"),
    ],
)
def test_how_to_continue(config: TrainConfig, words: str) -> None:
    assert how_to_continue(config, Path("/runs/x")) == words
