"""`hvdtrain checkpoint`: what is listed, found damaged, removed and kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hvdtrain.algorithms.early_stopping import Best
from hvdtrain.checkpoints import inspection
from hvdtrain.checkpoints.format import Checkpoint, Position, remove_checkpoint
from hvdtrain.checkpoints.store import CheckpointStore
from hvdtrain.cli.main import main
from hvdtrain.run.run_folder import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Checkpoints of the steps 1 to 5; the best one is that of step 2."""
    store = CheckpointStore(tmp_path / "run" / "checkpoints", keep=9)
    for step in range(1, 6):
        state = {"model/w": np.full(1000, step, np.float32), "optimizer/w": np.zeros(1000, np.float32)}
        about = {"world_size": 4, "seed": 1}
        store.save(Checkpoint(state, Position(step, 32 * step), about), Best("loss", 0.5, 2, 0))
    return tmp_path / "run"


def damage(run: Path, step: int, name: str = "model.safetensors") -> None:
    path = run / "checkpoints" / f"step_{step:08d}" / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def steps(run: Path) -> list[int]:
    return [int(path.name[-8:]) for path in sorted((run / "checkpoints").glob("step_*"))]


@pytest.mark.parametrize("below", ["", "checkpoints"])
def test_a_list(run: Path, below: str, capsys: pytest.CaptureFixture[str]) -> None:
    damage(run, 3, "manifest.json")
    assert main(["checkpoint", "ls", str(run / below)]) == 0
    lines = capsys.readouterr().out.replace("│", " ").splitlines()
    assert [line.split()[0] for line in lines[2:] if line.startswith("step_")] == [
        f"step_{step:08d}" for step in range(1, 6)
    ]
    (second,) = [line.split() for line in lines if line.startswith("step_00000002")]
    assert second[1:4] == ["2", "64", "4"]
    assert second[-1] == "best"
    (last,) = [line.split() for line in lines if line.startswith("step_00000005")]
    assert last[-1] == "latest"


def test_damage_is_found(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "verify", str(run)]) == 0
    assert capsys.readouterr().out.count(": sound, 0.0 MB") == 5
    damage(run, 4)
    (run / "checkpoints" / "step_00000001" / "optimizer.safetensors").unlink()
    assert main(["checkpoint", "verify", str(run)]) == 1
    out = capsys.readouterr().out
    assert "step_00000004: model.safetensors is damaged: its SHA-256 is not that of the manifest" in out
    assert "step_00000001: optimizer.safetensors cannot be read: No such file" in out
    assert out.count(": sound") == 3
    assert main(["checkpoint", "verify", str(run / "checkpoints" / "best")]) == 0
    assert capsys.readouterr().out.startswith("step_00000002: sound")


def test_what_the_run_removes_meanwhile_is_no_damage(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one before it is looked at, the second one before its files are read."""
    first, second = (run / "checkpoints" / f"step_{step:08d}" for step in (1, 2))
    read, listed = inspection.read_manifest, CheckpointStore(run / "checkpoints", keep=9).paths()
    remove_checkpoint(first)

    def removed_once_read(folder: Path) -> dict[str, Any]:
        manifest = read(folder)
        if folder == second:
            remove_checkpoint(second)
        return manifest

    monkeypatch.setattr(CheckpointStore, "paths", lambda _: listed)
    monkeypatch.setattr(inspection, "read_manifest", removed_once_read)
    assert main(["checkpoint", "verify", str(run)]) == 0
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        f"step_{step:08d}" for step in (3, 4, 5)
    ]


def test_what_is_removed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "prune", str(run), "--keep", "2", "--dry-run"]) == 0
    assert steps(run) == [1, 2, 3, 4, 5]
    assert main(["checkpoint", "prune", str(run), "--keep", "2"]) == 0
    assert steps(run) == [2, 4, 5]  # the best one stays
    assert capsys.readouterr().out.splitlines()[-1].startswith("2 checkpoints, ")
    assert list((run / "checkpoints").glob(".*")) == []


def test_what_is_kept_is_sound(run: Path) -> None:
    damage(run, 5)
    damage(run, 4, "manifest.json")
    assert main(["checkpoint", "prune", str(run), "--keep", "1"]) == 0
    assert steps(run) == [2, 3, 5]  # the best, the newest sound one, and what `latest` names


def test_a_run_that_is_running_keeps_its_checkpoints(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(run, 3)
    folder.claim()
    try:
        assert main(["checkpoint", "prune", str(run)]) == 2
    finally:
        folder.release()
    assert "Another job is running" in capsys.readouterr().err
    assert steps(run) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("command", ["ls", "verify", "prune"])
def test_where_there_is_none(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", command, str(tmp_path / "none")]) == 2
    assert main(["checkpoint", command, str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "none is not there." in err
    assert "holds no checkpoint." in err


def test_a_run_behind_a_url_is_not_pruned(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "prune", "s3://bucket/run"]) == 2
    assert "is a URL." in capsys.readouterr().err


def test_a_checkpoint_is_not_taken_for_the_run_whose_others_are_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "checkpoints" / "step_00000001"
    folder.mkdir(parents=True)
    assert main(["checkpoint", "prune", str(folder)]) == 2
    assert "is a checkpoint" in capsys.readouterr().err
    assert folder.exists()
