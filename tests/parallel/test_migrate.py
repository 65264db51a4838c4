"""The commands of docs/move-here, which are those of the table in docs/migrate.md: each trains on small true files.

What the test changes is said here: two workers on this machine, one update, small batches (of which one worker gets
more, where the command says the global size) and photos, and a ResNet-18 in all commands but the first.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.processes import run_command
from support.ranks import run_ranks
from support.runs import result_of

from hvdtrain.config.parser import parse_train_config
from hvdtrain.config.schedule_options import schedule_of

ROOT = Path(__file__).parents[2]
DEADLINE_S = 280
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # for whoever would take all cores: other tests run beside these
TABLE = (ROOT / "docs" / "migrate.md").read_text()
PAGES = "\n".join(page.read_text() for page in sorted((ROOT / "docs" / "move-here").glob("*.md")))
COMMANDS = dict(re.findall(r"<!-- migrate: (\w+) -->\n```bash\n(.*)\n```", PAGES))
LAUNCHER = {"mindspore": "mpirun"}
EXPECTED = {
    "slurm": {"model": "resnet50", "epochs": 200, "lr": 0.1, "lr_schedule": "cosine"},
    "imagenet": {"epochs": 90, "lr": 0.1, "lr_schedule": "step", "lr_milestones": [30.0, 60.0], "warmup_epochs": 0.0},
    "mindspore": {"epochs": 90, "lr": 0.1, "lr_schedule": "polynomial", "warmup_epochs": 5.0, "weight_decay": 1e-4},
    "tensorflow": {"framework": "tensorflow", "lr": 0.8, "lr_milestones": [91.0, 136.0]},
    "accumulation": {"accumulate_steps": 4, "max_grad_norm": 1.0},
}


def words(name: str) -> list[str]:
    return shlex.split(COMMANDS[name])


def train_flags(name: str) -> list[str]:
    """What hvdtrain itself is given, without the launcher."""
    argv = words(name)
    return argv[argv.index("train") + 1 :] if "train" in argv else argv[argv.index("hvdtrain") + 1 :]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CIFAR-10's binary files and ImageNet's folders, small."""
    path = ROOT / "tests" / "unit" / "tasks" / "support" / "picture_files.py"
    spec = importlib.util.spec_from_file_location("tests_picture_files", path)
    assert spec is not None
    assert spec.loader is not None
    files = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(files)
    folder = tmp_path_factory.mktemp("data")
    for task, write in (
        ("cifar10", lambda to: files.write_cifar10(to, (24, 16, 5))),
        ("imagenet", write_photos(files)),
    ):
        (folder / task).mkdir()
        write(folder / task)
    return folder


def write_photos(files: Any) -> Callable[[Path], Path]:
    return lambda folder: files.write_photo_folders(folder, each=4)  # type: ignore[no-any-return]


def test_the_table_of_all_has_these_commands() -> None:
    rows = re.findall(r"\| `([^`]+)` \|$", TABLE, re.MULTILINE)
    assert sorted(rows) == sorted(COMMANDS.values())
    assert set(COMMANDS) == set(EXPECTED)


@pytest.mark.parametrize("name", [name for name in COMMANDS if "launch" in COMMANDS[name]])
def test_launchers_take_the_command_as_it_stands(name: str, tmp_path: Path) -> None:
    argv = words(name)
    place = argv.index("--")
    rendered = run_command(
        [sys.executable, "-m", *argv[:place], "--dry-run", *argv[place:]], DEADLINE_S, None, tmp_path
    )
    assert rendered.returncode == 0, rendered.tail()
    assert "--model resnet50" in rendered.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_trains(name: str, data: Path, tmp_path: Path) -> None:
    flags = [
        word.replace("DIR", str(data / ("imagenet" if name == "imagenet" else "cifar10"))) for word in train_flags(name)
    ]
    shorter = ["--max-steps", "1", "--output-dir", "out", "--progress", "none", "--report", "never"]
    by_worker = "--batch-size" in flags
    shorter += ["--batch-size", "2"] if by_worker else ["--global-batch-size", "5"]
    shorter += ["--task-args.side", "48"] if name == "imagenet" else []
    shorter += ["--model", "resnet18"] if name != "slurm" else []
    command = ["-m", "hvdtrain", *flags, *shorter]
    if name == "accumulation":
        finished = run_command(["python", *command], DEADLINE_S, ONE_THREAD, tmp_path)
    else:
        finished = run_ranks(["python", *command], 2, LAUNCHER.get(name, "horovodrun-gloo"), DEADLINE_S, None, tmp_path)
    assert finished.returncode == 0, finished.tail()
    result = result_of(tmp_path / "out")
    assert (result["world_size"], result["steps"]) == (1 if name == "accumulation" else 2, 1)
    assert result["weights"]["equal_on_all_ranks"]  # BatchNorm's statistics too
    assert set(result["metrics"]) == {"loss", "accuracy", "top5"}
    config = yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())
    assert {key: config[key] for key in EXPECTED[name]} == EXPECTED[name]
    assert result["samples_seen"] == (8 if name == "accumulation" else 4 if by_worker else 5)


def schedule(name: str, epoch_steps: int) -> Callable[[int], float]:
    config = parse_train_config(train_flags(name))
    epochs = {"imagenet": 90}.get(name, config.epochs)
    assert epochs is not None
    assert config.warmup_epochs is not None
    return schedule_of(config, config.lr or 0.1, epochs, config.warmup_epochs, epoch_steps).lr


def test_learning_rates_are_those_of_the_imagenet_example() -> None:
    """pytorch/examples, imagenet/main.py: StepLR(optimizer, step_size=30, gamma=0.1), once an epoch."""
    lr = schedule("imagenet", 7)
    for step in range(90 * 7):
        assert lr(step) == pytest.approx(0.1 * 0.1 ** (step // 7 // 30))


def test_learning_rates_after_the_warm_up_are_those_of_mindspore() -> None:
    """mindspore/models, resnet's lr_generator: lr_max * (1 - done)^2, where done is the part of the steps after it."""
    lr, total, warm = schedule("mindspore", 7), 90 * 7, 5 * 7
    for step in range(warm, total):
        assert lr(step) == pytest.approx(0.1 * (1 - (step - warm) / (total - warm)) ** 2, rel=0.01, abs=1e-6)
