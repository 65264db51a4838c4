"""What is not used is not imported: `--help` is quick, a torch job does not pay for TensorFlow, nor the other way."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.commands import Ended, Forker, run, run_python

HEAVY = {"torch", "tensorflow", "keras", "horovod", "sklearn", "mpi4py", "torchvision", "pandas", "pyarrow", "datasets"}
SCRIPT = str(Path(__file__).parents[2] / "support" / "scripts" / "imports_of.py")


def top_level(ended: Ended) -> set[str]:
    assert ended.code == 0, ended
    return set(json.loads(ended.stdout.splitlines()[-1]))


def train(forker: Forker, framework: str, folder: Path, cache: Path, *without: str) -> Ended:
    argv = ["--framework", framework, "--max-steps", "2", "--output-dir", str(folder / "out")]
    return forker.run_python([SCRIPT, "--without", *without, "--", *argv], folder, {"HVDTRAIN_CACHE_DIR": str(cache)})


@pytest.mark.parametrize(
    "argv", [["--help"], ["train", "--help"], ["--help-all"], ["help"], ["--version"], ["--print-config"]]
)
def test_explaining_imports_nothing_heavy(argv: list[str], tmp_path: Path) -> None:
    done = run_python(["-X", "importtime", "-m", "hvdtrain", *argv], tmp_path)
    assert done.code == 0, done
    modules = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines() if "|" in line}
    assert "hvdtrain" in modules
    assert modules & HEAVY == set()


def test_a_refused_flag_imports_nothing_heavy(tmp_path: Path) -> None:
    done = run_python(["-X", "importtime", "-m", "hvdtrain", "--epoch", "3"], tmp_path)
    assert done.code == 2, done
    assert not [name for name in HEAVY if re.search(rf"\| +{name}(\.|$)", done.stderr, re.MULTILINE)]


def test_one_torch_process_imports_neither_tensorflow_nor_horovod(
    forker: Forker, tmp_path: Path, digits_cache: Path
) -> None:
    modules = top_level(train(forker, "torch", tmp_path, digits_cache, "tensorflow", "keras", "horovod"))
    assert modules & HEAVY == {"torch"}


def test_one_tensorflow_process_imports_neither_torch_nor_horovod(
    keras_forker: Forker, tmp_path: Path, digits_cache: Path
) -> None:
    modules = top_level(train(keras_forker, "tensorflow", tmp_path, digits_cache, "torch", "horovod"))
    assert modules & HEAVY - {"sklearn"} == {"tensorflow", "keras"}  # Keras itself imports scikit-learn


@pytest.mark.parametrize(("framework", "missing"), [("torch", "torch"), ("tensorflow", "keras")])
def test_a_framework_that_is_not_there_is_a_refusal(framework: str, missing: str, tmp_path: Path) -> None:
    done = run_python([SCRIPT, "--without", missing, "--", "--framework", framework, "--max-steps", "2"], tmp_path)
    done.require_refusal(f"The framework {framework} is not installed", f"pip install 'hvdtrain[{framework}]'")


def test_the_command_is_the_same_by_module(tmp_path: Path) -> None:
    assert re.fullmatch(r"hvdtrain \d+\.\d+.*\n", run(["--version"], tmp_path).stdout)
