"""Who finds its run folder held by another process: another job, or a worker of the same job that was lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock

from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.history.run_state import LOCK_NAME
from hvdtrain.run import run_folder
from hvdtrain.run.run_folder import RunFolder
from hvdtrain.topology.launcher_variables import RESTART_VARIABLE
from hvdtrain.world_channel import WORLD_VARIABLE


@pytest.mark.parametrize("variables", [{RESTART_VARIABLE: "1"}, {WORLD_VARIABLE: "2"}, {}])
def test_a_job_that_goes_on_fails_so_that_it_may_try_again(
    variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folder, "_LOST_SECONDS", 0.2)
    for name in (RESTART_VARIABLE, WORLD_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    folder = RunFolder(tmp_path, keep_checkpoints=1)
    with FileLock(tmp_path / LOCK_NAME), pytest.raises(HvdtrainError) as caught:
        folder.claim()
    assert isinstance(caught.value, UsageError) is not bool(variables)
    folder.claim()
    folder.release()
