"""Nothing in a file that is read is unpickled: files of data, of weights, of a run, of caches, and of options."""

from __future__ import annotations

import ast
import io
import os
import pickle
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from trap import Trap

from hvdtrain.cli.main import main

ROOT = Path(__file__).parents[3]
DEADLINE_S = 240


def npy(trap: Trap) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([trap], dtype=object))
    return file.getvalue()


def npz(trap: Trap) -> bytes:
    file = io.BytesIO()
    np.savez(file, x=np.array([trap], dtype=object))
    return file.getvalue()


def tar(trap: Trap) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        member = tarfile.TarInfo("000.pickle")
        member.size = len(trap.pickled)
        archive.addfile(member, io.BytesIO(trap.pickled))
    return file.getvalue()


def unpickled_member(file: Path) -> None:
    """As a loader does that decodes members by their names."""
    with tarfile.open(file) as archive:
        member = archive.extractfile("000.pickle")
        assert member is not None
        pickle.load(member)


DATA: dict[str, tuple[str, Callable[[Trap], bytes], Callable[[Path], object]]] = {
    "data_batch_1": ("cifar10", lambda trap: trap.pickled, lambda file: pickle.loads(file.read_bytes())),
    "x.npy": ("npz", npy, lambda file: np.load(file, allow_pickle=True)),
    "x.npz": ("npz", npz, lambda file: np.load(file, allow_pickle=True)["x"]),
    "x.tar": ("tar", tar, unpickled_member),
}
"""File → its format here, what is in it, and what a loader without a guard does with it."""


@pytest.mark.parametrize("name", DATA)
def test_a_pickle_in_data_is_refused_or_stays_bytes(name: str, trap: Trap, tmp_path: Path) -> None:
    format_name, made, unguarded = DATA[name]
    file = tmp_path / name
    file.write_bytes(made(trap))
    trap.require_sprung_by(lambda: unguarded(file))
    code = main(["shard", "index", str(file), "--format", format_name, "--check-data"])
    assert code == (0 if name == "x.tar" else 2), "a member of a tar shard is bytes, whatever its name is"
    trap.require_unsprung()


@pytest.mark.parametrize("how", ["zip", "old", "pickle"])
def test_a_pickle_in_weights_is_refused(
    how: str, trap: Trap, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    file, content = tmp_path / "model.pt", {"w": torch.ones(2), "epoch": trap}
    if how == "pickle":
        file.write_bytes(pickle.dumps(content, protocol=2))
        trap.require_sprung_by(lambda: pickle.loads(file.read_bytes()))
    else:
        torch.save(content, file, _use_new_zipfile_serialization=how == "zip")
        trap.require_sprung_by(lambda: torch.load(file, weights_only=False))
    assert main(["export", str(file)]) == 2
    assert "is not plain tensors" in capsys.readouterr().err
    trap.require_unsprung()


def trained(folder: Path, *options: str) -> int:
    """The exit code of a short training in a process of its own, with the caches in `cache`."""
    few = ["--max-steps", "3", "--checkpoint-interval", "1", "--progress", "none", "--warmup-epochs", "0"]
    return subprocess.run(
        [sys.executable, "-m", "hvdtrain", "train", *few, *options],
        cwd=folder,
        env={**os.environ, "HVDTRAIN_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    ).returncode


READERS = [
    ["checkpoint", "ls", "run"],
    ["checkpoint", "verify", "run"],
    ["export", "run", "--overwrite"],
    ["shard", "verify", "run"],
]


def test_pickles_in_place_of_any_file_of_a_run_or_a_cache_are_inert(
    trap: Trap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other for every command that reads a run, then all at once for a training that resumes it."""
    assert trained(tmp_path, "--output-dir", "run") in (0, 75)
    trap.require_sprung_by(lambda: pickle.loads(trap.pickled))
    monkeypatch.chdir(tmp_path)
    files = [file for file in Path("run").rglob("*") if file.is_file()]
    cached = [file for file in Path("cache").rglob("*") if file.is_file() and file.suffix != ".lock"]
    assert {"config.yaml", "metrics.jsonl", "manifest.json", "model.safetensors"} <= {file.name for file in files}
    assert cached
    for file in files:
        before = file.read_bytes()
        file.write_bytes(trap.pickled)
        codes = {main(words) for words in READERS}
        assert codes <= {0, 1, 2}, file
        trap.require_unsprung()
        file.write_bytes(before)
    for file in (*files, *cached):
        file.write_bytes(trap.pickled)
    assert trained(tmp_path, "--output-dir", "run", "--resume", "auto") != 0
    assert trained(tmp_path, "--output-dir", "new") in (0, 2, 75), "made again, or refused"
    trap.require_unsprung()


OPTIONS = {
    "config": ["train", "--config", "file"],
    "pipe plan": ["train", "--data.mode", "pipe", "--data.pipe-plan", "file", "--data.pipe-dir", "."],
    "hostfile": ["launch", "ssh", "--hostfile", "file", "--", "train"],
    "rank table": ["launch", "ssh", "--rank-table", "file", "--", "train"],
    "weights": ["export", "file"],
}


@pytest.mark.parametrize("option", OPTIONS)
def test_a_pickle_in_a_file_that_an_option_names_is_refused(
    option: str, trap: Trap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_bytes(trap.pickled)
    trap.require_sprung_by(lambda: pickle.loads(Path("file").read_bytes()))
    assert main(OPTIONS[option]) == 2
    trap.require_unsprung()


MAY_UNPICKLE = {
    "data_sharding/loading/decode_worker.py": "between a loader and the decoding processes that it has started",
    "hvdtrain/weights/torch_files.py": "torch.load with weights_only=True",
    "data_sharding/catalog/catalog_file.py": "numpy.load with allow_pickle=False",
    "hvdtrain/tasks/by_value.py": "what the calling process has put into a folder that only its user can open",
    "hvdtrain/cli/python_calls/rank_results.py": "an exception of this process, to see whether the bytes can be read",
    "hvdtrain/run/prediction.py": "numpy.load with allow_pickle=False",
    "hvdtrain/run/prediction_parts.py": "numpy.load with allow_pickle=False",
    "hvdtrain/keras/optimizer.py": "hvd.load_model: keras.models.load_model, whose safe mode is on unless a user says",
}
_LOADERS = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


def loading_calls(path: Path) -> Iterator[str]:
    """Calls that may build objects from bytes."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner, name = ast.unparse(node.func.value), node.func.attr
            is_loader = owner in _LOADERS and name in ("load", "loads", "Unpickler", "open")
            if is_loader or (owner in ("np", "numpy", "torch") and name == "load") or name == "load_model":
                yield ast.unparse(node)


def test_only_these_places_could_unpickle_at_all(tmp_path: Path) -> None:
    careless = tmp_path / "careless.py"
    careless.write_text("import pickle, torch\npickle.load(file)\ntorch.load(path)\nmarshal.loads(data)\n")
    assert len(list(loading_calls(careless))) == 3
    found: dict[str, list[str]] = {}
    for folder in ("hvdtrain", "data_sharding", "docker"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if calls := list(loading_calls(path)):
                found[str(path.relative_to(ROOT))] = calls
    assert set(found) == set(MAY_UNPICKLE)
    assert all("weights_only=True" in call for call in found["hvdtrain/weights/torch_files.py"])
    for path, why in MAY_UNPICKLE.items():
        assert "allow_pickle" not in why or all("allow_pickle=False" in call for call in found[path])
