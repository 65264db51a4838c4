"""The package of examples/added_package, built and installed as a user would: one of everything that can be added."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "examples" / "added_package"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH, with the package as its wheel installs it."""
    folder = tmp_path_factory.mktemp("added")
    source = folder / "source"
    source.mkdir()
    for file in PACKAGE.iterdir():
        if file.is_file():
            (source / file.name).write_bytes(file.read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), "."]
    subprocess.run(command, cwd=source, check=True, timeout=120)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        content.extractall(folder / "site")
    return folder / "site"


def hvdtrain(site: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(site), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-m", "hvdtrain", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_the_format_is_found_by_the_names_of_files(site: Path, tmp_path: Path) -> None:
    (tmp_path / "a.lines").write_text("one\ntwo\nthree\n")
    done = hvdtrain(site, tmp_path, "shard", "index", "a.lines")
    assert done.returncode == 0, done.stderr
    assert "3" in done.stdout
    assert "lines" in done.stdout


def test_the_launcher_renders_its_command(site: Path, tmp_path: Path) -> None:
    done = hvdtrain(site, tmp_path, "launch", "grid-engine", "-np", "8", "--queue", "big", "--dry-run", "--", "train")
    assert done.returncode == 0, done.stderr
    assert "exec qsub" in done.stdout
    assert "-q big" in done.stdout


def test_a_training_uses_the_optimizer_and_the_logger(site: Path, tmp_path: Path) -> None:
    words = ["--optimizer", "lion", "--lr", "0.0005", "--loggers", "text", "--epochs", "2", "--output-dir", "run"]
    done = hvdtrain(site, tmp_path, "train", "--framework", "torch", *words)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["metrics"]["accuracy"] > 0.8
    *lines, last = (tmp_path / "run" / "metrics.txt").read_text().splitlines()
    assert last == "finished"
    assert any(line.startswith("60 ") and "validation/accuracy=" in line for line in lines)
