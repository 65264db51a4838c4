"""What cannot work is refused by all ranks together: one message with its HINT, exit code 2, nothing trained."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.processes import python_path, run_command
from support.ranks import run_ranks

WORKERS = Path(__file__).parent / "workers"
ROOT = Path(__file__).parents[2]
TASK = ["--task", "train_torch_tasks:OwnFolder", "--data.dir"]


def module_path(*first: Path) -> dict[str, str]:
    return python_path(*first, WORKERS)


def refused(finished: Any, launcher: str, fact: str, folder: Path) -> None:
    """`fact` and a HINT once in full, in this order; horovodrun --gloo makes every exit code 1; nothing was trained."""
    assert finished.returncode == (1 if launcher == "horovodrun-gloo" else 2), finished.tail()
    ours = finished.stderr.partition("Traceback (most recent call last)")[0]  # horovodrun's own, at the end
    assert ours.count(fact) == 1, finished.tail()
    assert ours.count("HINT: ") == 1, finished.tail()
    assert ours.index(fact) < ours.index("HINT: "), finished.tail()
    assert "A collective operation was aborted" not in finished.stderr, finished.tail()
    assert not list(folder.rglob("checkpoints")), finished.tail()
    assert not list(folder.rglob("metrics.jsonl")), finished.tail()


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the digits' records, made as every user's are."""
    cache = tmp_path_factory.mktemp("cache")
    argv = ["python", "-m", "hvdtrain", "--dry-run"]
    finished = run_command(argv, 180, env={"HVDTRAIN_CACHE_DIR": str(cache)}, cwd=cache)
    assert finished.returncode == 0, finished.tail()
    (folder,) = (path.parent for path in cache.rglob("train-00000-of-*.tfrecord"))
    return folder


@pytest.mark.parametrize(("launcher", "framework"), [("mpirun", "tensorflow"), ("horovodrun-gloo", "torch")])
def test_a_dry_run_tries_a_batch_on_all_ranks_and_writes_nothing(
    launcher: str, framework: str, digits: Path, tmp_path: Path
) -> None:
    command = ["python", "-m", "hvdtrain", "--dry-run", "--framework", framework, "--data.dir", str(digits)]
    env = {"HVDTRAIN_CACHE_DIR": str(tmp_path.with_name("dry-cache"))}
    finished = run_ranks([*command, "--global-batch-size", "31"], 2, launcher, 240, env=env, cwd=tmp_path)
    assert finished.returncode == 0, finished.tail()
    assert finished.stdout.count("dry run: training batch of 31 records: forward, backward and update in") == 1
    assert finished.stdout.count("dry run: validation batch of 31 records: forward in") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun", "horovodrun-gloo"])
def test_global_batch_smaller_than_the_world(launcher: str, tmp_path: Path) -> None:
    command = ["python", "-m", "hvdtrain", "--global-batch-size", "2"]
    finished = run_ranks(command, 3, launcher, 180, cwd=tmp_path)
    refused(finished, launcher, "The global batch holds 2 records for 3 workers.", tmp_path)


@pytest.mark.parametrize(("launcher", "framework"), [("mpirun", "tensorflow"), ("horovodrun-gloo", "torch")])
def test_data_missing_on_all_ranks(launcher: str, framework: str, tmp_path: Path) -> None:
    command = ["python", "-m", "hvdtrain", "--framework", framework, "--data.dir", str(tmp_path / "none")]
    finished = run_ranks(command, 2, launcher, 180, cwd=tmp_path)
    refused(finished, launcher, f"hvdtrain: There is no folder {tmp_path / 'none'}.", tmp_path)


@pytest.mark.parametrize(("launcher", "lacking"), [("mpirun", 1), ("horovodrun-gloo", 0)])
def test_data_missing_on_one_rank(launcher: str, lacking: int, digits: Path, tmp_path: Path) -> None:
    shutil.copytree(digits, tmp_path / f"rank_{1 - lacking}")
    command = ["python", "-m", "hvdtrain", *TASK, str(tmp_path)]
    finished = run_ranks(command, 2, launcher, 180, env=module_path(), cwd=tmp_path)
    fact = f"On rank {lacking}: No file matches {tmp_path / f'rank_{lacking}'}/train-*.tfrecord."
    refused(finished, launcher, fact, tmp_path)


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun-gloo"])
def test_ranks_that_see_different_data(launcher: str, digits: Path, tmp_path: Path) -> None:
    for rank in range(3):
        shutil.copytree(digits, tmp_path / f"rank_{rank}")
    sorted((tmp_path / "rank_2").glob("train-*"))[0].unlink()
    command = ["python", "-m", "hvdtrain", *TASK, str(tmp_path)]
    finished = run_ranks(command, 3, launcher, 180, env=module_path(), cwd=tmp_path)
    refused(finished, launcher, "Rank 2 sees other data than rank 0: ", tmp_path)


@pytest.mark.parametrize(("launcher", "place"), [("mpirun", "open_data"), ("horovodrun-gloo", "open_data")])
def test_refusal_by_the_task_on_one_rank(launcher: str, place: str, tmp_path: Path) -> None:
    fault = {"place": place, "kind": "refuse", "rank": 1, "call": 1, "stamp": str(tmp_path / "stamp")}
    env = {**module_path(), "TRAIN_FAULT": json.dumps(fault)}
    command = ["python", "-m", "hvdtrain", "--task", "train_torch_tasks:Faulty"]
    finished = run_ranks(command, 2, launcher, 180, env=env, cwd=tmp_path)
    refused(finished, launcher, f"On rank 1: There is a deliberate refusal in {place}.", tmp_path)


MPI_BY_HAND = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
HOROVOD_BY_HAND = {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "2"}


@pytest.mark.parametrize(
    ("variables", "fact"),
    [
        (MPI_BY_HAND, "mpirun started 2 processes (OMPI_COMM_WORLD_SIZE=2), but Horovod sees one."),
        (HOROVOD_BY_HAND, "horovodrun started 2 processes (HOROVOD_SIZE=2), but Horovod sees one."),
        ({"OMPI_COMM_WORLD_RANK": "1"}, "OMPI_COMM_WORLD_SIZE"),
        ({"HOROVOD_SIZE": "2"}, "HOROVOD_RANK"),
    ],
    ids=["mpi", "horovod", "mpi-rank-only", "horovod-size-only"],
)
def test_launcher_s_variables_without_a_launcher(variables: Mapping[str, str], fact: str, tmp_path: Path) -> None:
    """Never "rank 0 of 1" by guess: the process would train alone on all of the data."""
    finished = run_command(["python", "-m", "hvdtrain"], 180, env=variables, cwd=tmp_path)
    assert finished.returncode == 2, finished.tail()
    assert fact in finished.stderr, finished.tail()
    assert finished.stderr.count("HINT: ") == 1, finished.tail()
    assert not list(tmp_path.iterdir()), finished.tail()


def said_by_each(finished: Any, fact: str, folder: Path) -> None:
    """Before Horovod runs, ranks cannot agree: each says it, rank 0 on two lines and others on one."""
    assert finished.returncode == 2, finished.tail()
    assert 1 <= finished.stderr.count(fact) <= 2, finished.tail()
    assert finished.stderr.count("HINT: ") == finished.stderr.count(fact), finished.tail()
    assert "Traceback" not in finished.stderr, finished.tail()
    assert not (folder / "runs").exists(), finished.tail()


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_horovod_that_was_not_built_for_the_framework(framework: str, tmp_path: Path) -> None:
    """A copy of the installed package by links, without one extension: what a build without that framework leaves."""
    spec = importlib.util.find_spec("horovod")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    installed = Path(spec.submodule_search_locations[0])
    shutil.copytree(installed, tmp_path / "horovod", copy_function=os.symlink)
    for extension in (tmp_path / "horovod" / framework).glob("mpi_lib*.so"):
        extension.unlink()
    command = ["python", "-m", "hvdtrain", "--framework", framework]
    finished = run_ranks(command, 2, "mpirun", 180, module_path(tmp_path), tmp_path, interpreter="fresh")
    said_by_each(finished, f"The installed Horovod was not built for {framework}.", tmp_path)


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_framework_that_is_not_installed(framework: str, tmp_path: Path) -> None:
    """Python without its site-packages (-S), and links to all of them but one framework's."""
    packages = tmp_path / "packages"
    packages.mkdir()
    absent = {"torch": ("torch",), "tensorflow": ("tensorflow", "keras")}[framework]
    spec = importlib.util.find_spec("numpy")
    assert spec is not None
    assert spec.origin is not None
    for path in Path(spec.origin).parents[1].iterdir():
        if path.name not in absent:
            (packages / path.name).symlink_to(path)
    command = ["python", "-S", "-m", "hvdtrain", "--framework", framework]
    finished = run_ranks(command, 2, "mpirun", 180, module_path(packages, ROOT), tmp_path, "fresh")
    said_by_each(finished, f"The framework {framework} is not installed: there is no module ", tmp_path)
