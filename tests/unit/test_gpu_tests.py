"""The tests of tests/gpu: without a GPU they are collected, skipped with a sentence, and refused by their command."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "gpu"


def ended(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)


@pytest.mark.skipif(torch.cuda.is_available(), reason="they would run here")
def test_without_a_gpu_their_command_refuses_by_a_sentence_and_runs_nothing() -> None:
    run = ended(str(FOLDER / "run.py"))
    said = " ".join(line.removeprefix("#").strip() for line in run.stderr.splitlines())
    assert run.returncode == 1
    assert "tests/gpu was NOT run: nothing of docs/gpu.md has run on a GPU here. torch" in said
    assert "make setup EXTRAS=torch,mpi,cuda" in said
    assert run.stdout == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="they would run here")
def test_without_a_gpu_every_test_is_collected_and_skipped() -> None:
    run = ended("-m", "pytest", "-q", "-p", "no:cacheprovider", str(FOLDER))
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(r"^\d+ skipped in ", run.stdout.splitlines()[-1]), run.stdout


def test_every_file_that_the_page_names_exists_and_it_names_each_of_these_tests() -> None:
    page = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:hvdtrain|tests|benchmarks)/[\w./-]+)`", page))
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
    assert {f"tests/gpu/{file.name}" for file in FOLDER.glob("test_*.py")} <= named
