"""Runs of the digits, and command lines beside tasks of a user's own."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.commands import Ended, Forker
from support.digits_runs import OWN_TASKS, SHORT, Command


@pytest.fixture
def hvdtrain(tmp_path: Path, digits_cache: Path, forker: Forker) -> Command:
    """Runs command lines in an empty folder, `own.py` beside them."""
    (tmp_path / "own.py").write_text(OWN_TASKS)

    def command(*argvs: Sequence[str]) -> list[Ended]:
        env = {"HVDTRAIN_CACHE_DIR": str(digits_cache)}
        return [forker.run([*SHORT, *argv], tmp_path, env) for argv in argvs]

    return command


@pytest.fixture
def digits(tmp_path: Path, digits_cache: Path) -> Path:
    """A copy of the data that may be harmed."""
    return shutil.copytree(digits_cache / "data" / "digits-v1", tmp_path / "digits")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, digits_cache: Path, forker: Forker) -> Path:
    """The folder of a run that stopped after two steps. Not to be changed."""
    folder = tmp_path_factory.mktemp("finished")
    ended = forker.run([*SHORT, "--output-dir", "out"], folder, {"HVDTRAIN_CACHE_DIR": str(digits_cache)})
    assert ended.code == 0, ended
    return folder / "out"


@pytest.fixture
def run_folder(finished: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(finished, tmp_path / "out")
