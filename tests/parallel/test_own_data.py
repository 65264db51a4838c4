"""ImageFolder and Hugging Face's data sets in a mixture: killed on two workers, resumed on three, they train as one.

What is trained on is bit for bit what one worker trains on, random transforms included.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.jobs import Job
from support.processes import run_command
from support.runs import ledger_of, result_of

DEADLINE_S = 120.0
TRAIN = ("--epochs", "2", "--global-batch-size", "12", "--checkpoint-interval", "5", "--lr", "0.1", "--resume", "auto")
VARIABLES = {"SEEN": "seen", "HELD": "held", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": "hub"}
OF_FOLDER, OF_HUB, TEXTS = 60, 40, 40
ALL = OF_FOLDER + OF_HUB + TEXTS


@pytest.fixture
def data(tmp_path: Path) -> None:
    """What `workers/own_data.py` reads."""
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    noise = np.random.default_rng(1).integers(0, 256, (OF_FOLDER + OF_HUB, 12, 12, 3), np.uint8)
    pictures, folder = [Image.fromarray(each) for each in noise], tmp_path / "data"
    for number, picture in enumerate(pictures[OF_HUB:]):
        place = folder / "folder" / ("cats", "dogs")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        picture.save(place / f"{number}.png")
    of_hub = datasets.Dataset.from_dict({"image": pictures[:OF_HUB], "label": [n % 2 for n in range(OF_HUB)]})
    of_hub.cast_column("image", datasets.Image()).save_to_disk(folder / "pictures")
    words = [" ".join(["good", "bad"][n % 2 :] * (1 + n % 3)) for n in range(TEXTS)]
    datasets.Dataset.from_dict({"text": words, "label": [n % 2 for n in range(TEXTS)]}).save_to_disk(folder / "texts")


def train(folder: Path, workers: int) -> Job:
    """Start a training in `folder`, or go on with it."""
    folder.mkdir(exist_ok=True)
    options = ["--task", "own_data:Mixed", "--data.dir", "../data", "--data.threads", "1", *TRAIN]
    return Job(folder, ["-np", str(workers)], options, VARIABLES)


def seen(folder: Path) -> list[str]:
    """What a run's processes have decoded: lines of the number of a record and the sums of its arrays."""
    return [line for file in folder.glob("seen-*") for line in file.read_text().splitlines()]


def kill_one_of_two(folder: Path) -> None:
    """In the second epoch, with a checkpoint to resume from."""
    with train(folder, 2) as job:
        is_saved = (job.out / "checkpoints" / "latest").exists
        job.await_that(lambda: (folder / "held").exists() and is_saved(), "a checkpoint and a held step", DEADLINE_S)
        os.kill(job.workers()[1], signal.SIGKILL)
        assert job.ended(DEADLINE_S) not in (0, 75), job.output


@pytest.mark.timeout(5 * DEADLINE_S)
@pytest.mark.usefixtures("data")
def test_a_kill_and_other_workers_change_no_bit_of_a_mixture(tmp_path: Path) -> None:
    one, more = tmp_path / "one", tmp_path / "more"
    with train(one, 1) as job:
        assert job.ended(DEADLINE_S) == 0, job.output
    kill_one_of_two(more)
    with train(more, 3) as job:
        assert job.ended(DEADLINE_S) == 0, job.output
    assert {line["world_size"] for line in ledger_of(more / "out") if "world_size" in line} == {2, 3}
    verified = run_command(["python", "-m", "hvdtrain", "shard", "verify", str(more / "out")], DEADLINE_S)
    assert f"used every one of {ALL} records as often as planned" in verified.stdout, verified.tail()
    assert result_of(more / "out")["metrics"] == pytest.approx(result_of(one / "out")["metrics"], rel=1e-5)
    assert set(seen(more)) == set(seen(one))  # those of steps that were made twice, too
    of_folder = [int(line.split()[0]) < OF_FOLDER for line in seen(one)]
    assert sum(of_folder) / len(of_folder) == pytest.approx(0.7, abs=0.01)
    assert len(set(seen(one))) > 2 * ALL  # a picture that is drawn again is cropped in another way
