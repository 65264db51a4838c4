"""PyTorch and Keras train alike: from the same weights, by the same losses."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.processes import run_command
from support.ranks import run_ranks
from support.runs import lines_of

DEADLINE_S = 240
STEPS = 20


@pytest.mark.timeout(900)
def test_from_the_same_weights_the_loss_curves_are_the_same(tmp_path: Path) -> None:
    """One process in torch, two ranks in TensorFlow, from weights that torch has trained for one step."""

    def flags(name: str, *more: str) -> list[str]:
        steps = ["--progress", "none", "--log-interval", "1", "--output-dir", str(tmp_path / name)]
        return ["-m", "hvdtrain", *steps, *more]

    def losses(name: str) -> list[float]:
        lines = lines_of(tmp_path / name)
        return [line["loss"] for line in lines if line.get("split") == "train"]

    start = ["--init-weights", str(tmp_path / "start"), "--max-steps", str(STEPS)]
    for finished in (
        run_command(["python", *flags("start", "--max-steps", "1")], DEADLINE_S),
        run_command(["python", *flags("torch", *start)], DEADLINE_S),
        run_ranks(["python", *flags("keras", *start, "--framework", "tensorflow")], 2, "horovodrun", DEADLINE_S),
    ):
        assert finished.returncode == 0, finished.tail()
    in_torch, in_keras = losses("torch"), losses("keras")
    assert len(in_torch) == len(in_keras) == STEPS
    assert in_torch[0] < losses("start")[0]  # the weights were taken
    assert in_torch[-1] < in_torch[0] - 0.1  # and trained
    assert in_keras == pytest.approx(in_torch, abs=1e-5)
