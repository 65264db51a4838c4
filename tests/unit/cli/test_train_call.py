"""`hvdtrain.train(...)` trains in the caller's process, again and again; what goes wrong is an exception."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest
from support.commands import Forker, run_python

import hvdtrain

SCRIPT = str(Path(__file__).parents[2] / "support" / "scripts" / "train_calls.py")


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_a_script_trains_its_own_class_several_times(
    framework: str, tmp_path: Path, digits_cache: Path, request: pytest.FixtureRequest
) -> None:
    forker: Forker = request.getfixturevalue("forker" if framework == "torch" else "keras_forker")
    ended = forker.run_python([SCRIPT, framework], tmp_path, {"HVDTRAIN_CACHE_DIR": str(digits_cache)})
    assert ended.code == 0, ended
    told = json.loads(ended.stdout.splitlines()[-1])
    folders = ["lr_0.001", "lr_0.01", "lr_0.01", "whole", "after"]
    assert [run["run_folder"] for run in told["runs"]] == [str(tmp_path / name) for name in folders]
    assert [(run["status"], run["steps"]) for run in told["runs"]] == [("stopped", n) for n in (3, 3, 5, 5, 1)]
    first, second, resumed, whole, _ = (run["weights"] for run in told["runs"])
    assert first != second
    assert resumed == whole
    assert told["named"] == {"status": "checked"}
    unknown, wrong, infinite, no_task, untied = told["refused"]
    assert unknown == "UsageError: There is no key 'learning_rate' in a config, but the call has it."
    assert wrong == "UsageError: --lr is given as 'x'."
    assert infinite.startswith("HvdtrainError: The training loss is nan")
    assert no_task == "UsageError: hvdtrain.train() was given task=3."
    assert untied == "UsageError: The 'loss' of the task's measure() depends on no weight that is trained."
    held = {"rows": True, "same": True, "framed": True, "metrics": True}
    assert told["facts"] == held | {"splits": ["train", "validation"], "page": "report.html"}
    logs = [(tmp_path / name / "logs" / "rank_0.log").read_text() for name in ("lr_0.001", "after")]
    assert [log.count("run started: ") for log in logs] == [1, 1]  # each run writes to its own log


def test_importing_hvdtrain_loads_nothing(tmp_path: Path) -> None:
    ended = run_python(["-c", "import hvdtrain, sys; print(*sys.modules)"], tmp_path)
    loaded = {"hvdtrain", "numpy", "torch", "tensorflow", "keras", "jsonargparse"} & set(ended.stdout.split())
    assert loaded == {"hvdtrain"}, ended


def test_a_worker_of_a_job_is_refused(forker: Forker, tmp_path: Path) -> None:
    env = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "2"}
    call = "import hvdtrain\ntry: hvdtrain.train()\nexcept hvdtrain.UsageError as error: print(error)"
    ended = forker.run_python(["-c", call], tmp_path, env)
    assert "hvdtrain.train() is called by rank 1 of 2" in ended.stdout, ended
    assert list(tmp_path.iterdir()) == []


def test_a_class_of_a_script_is_refused_on_the_command_line_in_words_that_help(forker: Forker, tmp_path: Path) -> None:
    ended = forker.run(["--task", "__main__:Task"], tmp_path)
    ended.require_refusal("The module '__main__' has no 'Task'.", "hvdtrain.train(task=Class)")


def test_run_tells_its_arguments_although_it_is_a_package() -> None:
    assert {"args", "np", "hosts"} <= inspect.signature(hvdtrain.run).parameters.keys()
