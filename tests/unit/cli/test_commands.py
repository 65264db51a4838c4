"""Commands that are refused: exit code 2, the cause, what to do, no traceback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import Forker

REFUSED = {
    "a command": (["trian"], ["There is no command 'trian'", "did you mean 'train'?"]),
    "a command of others": (["fit"], ["There is no command 'fit'", "HINT: did you mean train?"]),
    "a list": (["list"], ["There is no command 'list'", "HINT: did you mean ls?"]),
    "a watch": (["watch"], ["There is no command 'watch'", "HINT: did you mean top?"]),
    "a log": (["tail"], ["There is no command 'tail'", "HINT: did you mean logs?"]),
    "a difference": (["diff"], ["There is no command 'diff'", "HINT: did you mean compare?"]),
    "a validation": (["eval"], ["There is no command 'eval'", "HINT: did you mean evaluate?"]),
    "a choice that is not there": (
        ["export", "runs", "--format", "onx"],
        ["invalid choice: 'onx'", "did you mean onnx?"],
    ),
    "a launcher's option": (["launch", "local", "--nproc-per-node", "2"], ["did you mean -np?"]),
    "workers' options": (
        ["launch", "local", "-np", "2", "--dry-run", "--", "train", "--learning-rate", "1"],
        ["There is no option --learning-rate.", "did you mean --lr?"],
    ),
    "an option": (["--epoch", "3"], ["There is no option --epoch.", "did you mean --epochs?"]),
    "an option of the command": (["train", "--epoch", "3"], ["There is no option --epoch."]),
    "a value": (["--epochs", "0"], ["--epochs is 0."]),
    "a type": (["--lr", "fast"], ["--lr is given as 'fast'.", "It must be a number or null."]),
    "a task": (["--task", "digit"], ["There is no task 'digit'", "did you mean 'digits'?"]),
    "a module": (["--task", "nowhere:Task"], ["There is no module 'nowhere'"]),
    "a relative module": (["--task", ".nowhere:Task"], ["There is no module '.nowhere'"]),
    "a class": (["--task", "json:Task"], ["The module 'json' has no 'Task'"]),
    "no task": (["--task", "json:JSONDecoder"], ["json:JSONDecoder is not a hvdtrain.Task"]),
    "half a task": (
        ["--task", "hvdtrain.task.task:Task"],
        ["hvdtrain.task.task:Task does not define build_model"],
    ),
    "a framework": (["--framework", "pytorch"], ["There is no framework 'pytorch'", "did you mean 'torch'?"]),
    "a config file": (["--config", "none.yaml"], ["The config file none.yaml cannot be read"]),
    "a positional": (["train", "digits"], ["unrecognized arguments: digits"]),
}


def test_help_begins_with_commands_and_first_flags(forker: Forker, tmp_path: Path) -> None:
    pages = [forker.run(argv, tmp_path) for argv in (["--help"], ["help"])]
    assert pages[0] == pages[1]
    assert pages[0].code == 0
    text = pages[0].stdout
    assert len(text.splitlines()) < 70
    for line in (
        "  launch     start a job",
        "  doctor     find what",
        "  top        watch all",
        "  --batch-size N ",
        "  horovodrun -np 8",
    ):
        assert f"\n{line}" in text, line
    assert "--help-all" in text
    assert forker.run(["help", "export"], tmp_path) == forker.run(["export", "--help"], tmp_path)


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, forker: Forker, tmp_path: Path) -> None:
    argv, facts = REFUSED[case]
    forker.run(argv, tmp_path).require_refusal(*facts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("backend", "task"), [("torch", "digits"), ("jax", "digits"), ("jax", "own_keras:Own")])
def test_a_tensorflow_task_is_refused_with_another_backend_of_keras(
    backend: str, task: str, forker: Forker, tmp_path: Path
) -> None:
    """Also where Keras itself cannot be imported with it, as with jax here."""
    (tmp_path / "own_keras.py").write_text("import keras\n")
    argv = ["--task", task, "--framework", "tensorflow", "--dry-run"]
    ended = forker.run(argv, tmp_path, {"KERAS_BACKEND": backend})
    ended.require_refusal(f"Keras runs on the {backend} backend.", "HINT: set KERAS_BACKEND=tensorflow")


def test_a_torch_task_is_trained_whatever_keras_would_run_on(forker: Forker, tmp_path: Path) -> None:
    argv = ["--task", "digits", "--framework", "torch", "--dry-run"]
    assert forker.run(argv, tmp_path, {"KERAS_BACKEND": "jax"}).code == 0


def test_a_refusal_says_nothing_on_standard_output(forker: Forker, tmp_path: Path) -> None:
    assert forker.run(["--epochs", "0"], tmp_path).stdout == ""


@pytest.mark.parametrize("argv", [["--epochs", "1"], ["report", "X"], ["ls"]])
def test_a_working_directory_that_was_deleted_is_refused(argv: list[str], forker: Forker, tmp_path: Path) -> None:
    program = f"import os, sys; from hvdtrain.cli.main import main; os.rmdir(os.getcwd()); sys.exit(main({argv}))"
    (tmp_path / "gone").mkdir()
    ended = forker.run_python(["-c", program], tmp_path / "gone")
    ended.require_refusal("The working directory was deleted.", "HINT: change to a folder that exists; to this one")


def test_debug_adds_the_traceback(forker: Forker, tmp_path: Path) -> None:
    done = forker.run(["--epochs", "0", "--debug"], tmp_path)
    assert done.code == 2
    assert done.stderr.startswith("Traceback")
    assert "hvdtrain: --epochs is 0." in done.stderr


def test_a_defect_shows_the_task_s_own_frames_last_and_the_others_with_debug(forker: Forker, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise ZeroDivisionError('in the task module')\n")
    done = forker.run(["--task", "broken:Task"], tmp_path)
    assert done.code == 1
    heading, _, shown = done.stderr.partition(":\nTraceback (most recent call last):\n")
    assert re.fullmatch(r"hvdtrain failed \(\d+ frames of libraries are not shown; --debug shows them\)", heading)
    assert re.fullmatch(r"  File .*broken.py.*\n    raise .*\nZeroDivisionError: in the task module\n", shown), shown
    done = forker.run(["--task", "broken:Task", "--debug"], tmp_path)
    assert done.stderr.startswith("hvdtrain failed:\nTraceback")
    assert "importlib" in done.stderr
    assert "broken.py" in done.stderr


def test_an_output_that_nobody_reads_to_its_end_is_no_failure() -> None:
    command = [sys.executable, "-m", "hvdtrain", "shard", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert (process.stderr.read(), process.wait(60)) == ("", 141)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["--version"], ["shard", "--help"], ["ls", "--help"], ["env"]], ids=" ".join)
def test_an_output_that_takes_nothing_is_a_failure_in_a_sentence(arguments: list[str], unbuffered: str) -> None:
    command = [sys.executable, "-m", "hvdtrain", *arguments]
    variables = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=variables)
    assert done.returncode == 1
    assert done.stderr.startswith("hvdtrain: Standard output cannot be written: No space left on device.")
    assert "Traceback" not in done.stderr


def test_a_full_disk_elsewhere_leaves_the_output_as_it_is(tmp_path: Path) -> None:
    code = "import errno; from hvdtrain.cli.failure import leave_after; print('{}'); "
    code += "raise SystemExit(leave_after(OSError(errno.ENOSPC, 'full'), False))"
    with open(tmp_path / "out", "w") as out:
        done = subprocess.run([sys.executable, "-c", code], stdout=out, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, (tmp_path / "out").read_text()) == (1, "{}\n")
    assert "Standard output" not in done.stderr
