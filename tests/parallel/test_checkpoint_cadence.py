"""Young and Daly's interval in a real run, from what its own checkpoints cost; and what its metrics say of each one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.ranks import run_ranks
from support.runs import lines_of, result_of

STEPS_OF_AN_EPOCH = 30


def test_a_job_that_often_fails_saves_within_epochs(tmp_path: Path) -> None:
    """Every epoch ends with a checkpoint in any case. A job that fails once a day needs no others within seconds."""
    within = {}
    for mtbf in ("0.1s", "24h"):
        argv = ["python", "-m", "hvdtrain", "--checkpoint-every", "auto", "--mtbf", mtbf, "--output-dir", mtbf]
        finished = run_ranks([*argv, "--max-steps", "240"], 2, "horovodrun-gloo", 240, cwd=tmp_path)
        assert finished.returncode == 0, finished.tail()
        saves = _saves(tmp_path / mtbf)
        assert [save["step"] for save in saves if save["step"] % STEPS_OF_AN_EPOCH == 0] == list(range(30, 241, 30))
        within[mtbf] = [save["step"] for save in saves if save["step"] % STEPS_OF_AN_EPOCH]
    assert within["0.1s"], "at 10 ms for a checkpoint, one is due every 45 ms; an epoch takes several times that"
    assert within["24h"] == []


def _saves(folder: Path) -> list[dict[str, Any]]:
    """Events of checkpoints; each says how large it is, how long training has waited, and how long writing took."""
    parameters = result_of(folder)["parameters"]
    events = lines_of(folder)
    saves = [event for event in events if event.get("event") == "checkpoint"]
    for save in saves:
        assert save["bytes"] >= 3 * 4 * parameters, "Adam has two numbers for each weight"
        assert save["seconds"] > 0
        assert save["write_seconds"] > 0
    for save in saves[-2:]:  # older ones are removed
        files = (folder / "checkpoints" / save["path"]).iterdir()
        assert save["bytes"] <= sum(file.stat().st_size for file in files)
    return saves
