"""Arguments of `hvdtrain.run`, `evaluate` and `predict` that cannot be meant are refused; and what can be sent."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

import hvdtrain
from hvdtrain.cli.python_calls.private_folder import private_folder
from hvdtrain.cli.train_call import _plain
from hvdtrain.config.parser import train_config_of
from hvdtrain.errors import UsageError
from hvdtrain.run.evaluation_files import require_free


def uses_others_run() -> str:
    asyncio.run(asyncio.sleep(0))
    return f"{subprocess.run(['true'], check=True).returncode} of {hvdtrain.__name__}"


def test_a_function_that_calls_another_run_can_be_sent() -> None:
    hvdtrain.run  # noqa: B018  imports the package that is a function, too
    here = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(here)
    try:
        assert cloudpickle.loads(cloudpickle.dumps(uses_others_run))() == "0 of hvdtrain"
    finally:
        cloudpickle.unregister_pickle_by_value(here)


def test_numbers_of_numpy_are_taken_and_null_for_a_text_is_not() -> None:
    taken = train_config_of(_plain({"lr": np.float32(0.5), "epochs": np.int64(3), "task_args": {"a": [np.int8(2)]}}))
    assert (taken.lr, taken.epochs, taken.task_args) == (0.5, 3, {"a": [2]})
    with pytest.raises(UsageError, match="--resume is null"):
        train_config_of({"resume": None})


def test_a_call_removes_what_killed_calls_of_this_host_have_left(tmp_path: Path) -> None:
    left, young = tmp_path / ".hvdtrain-call-left", tmp_path / ".hvdtrain-call-young"
    with private_folder(tmp_path) as held:
        for folder in (left, young):
            folder.mkdir()
        for folder in (left, held):
            os.utime(folder, (0, 0))
        with private_folder(tmp_path) as another:
            assert set(tmp_path.iterdir()) == {young, held, another}
    assert set(tmp_path.iterdir()) == {young}


def test_an_error_of_the_system_within_a_call_is_itself(tmp_path: Path) -> None:
    with pytest.raises(ConnectionResetError), private_folder(tmp_path):
        raise ConnectionResetError
    assert list(tmp_path.iterdir()) == []


INTERRUPTED = """
import os, sys, threading, time, hvdtrain
hvdtrain.run  # imports what it needs
threading.Timer(float(sys.argv[1]), os.kill, (os.getpid(), 2)).start()
try:
    hvdtrain.run(time.sleep, (60,), np=2)
except KeyboardInterrupt:
    sys.exit(77)
"""


def test_an_interrupt_of_the_first_moment_is_one(tmp_path: Path) -> None:
    """The launcher does not take it yet: Python ends it, by the signal or with exit code 1."""
    argv = [sys.executable, "-c", INTERRUPTED]
    calls = [subprocess.Popen([*argv, pause], cwd=tmp_path) for pause in ("0.03", "0.1", "0.2")]
    assert [call.wait(120) for call in calls] == [77] * 3


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: hvdtrain.run(5), "given 5 as its function"),  # type: ignore[arg-type]
        (lambda: hvdtrain.run(print, args=5), "args=5"),  # type: ignore[arg-type]
        (lambda: hvdtrain.run(print, args="abc"), "args='abc'"),
        (lambda: hvdtrain.run(print, kwargs=[1]), r"kwargs=\[1\]"),  # type: ignore[arg-type]
        (lambda: hvdtrain.evaluate("r", sets=["a"]), r"sets=\['a'\]"),  # type: ignore[arg-type]
        (lambda: hvdtrain.evaluate("r", sets={"a": ""}), "has the set 'a': ''"),
        (lambda: hvdtrain.evaluate("r", sets={"a": 5}), "has the set 'a': 5"),  # type: ignore[dict-item]
        (lambda: hvdtrain.predict("r", "o.npz", pattern=""), "has the pattern: ''"),
    ],
)
def test_what_cannot_be_meant_is_refused(call: Callable[[], Any], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HVDTRAIN_LAUNCHER", raising=False)
    with pytest.raises(UsageError, match=said):
        call()


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (Path("/proc/x.json"), tmp_path / "file" / "x.json"):
        with pytest.raises(UsageError, match="cannot be written"):
            require_free(place, force=True)
    require_free(tmp_path / "new" / "x.json", force=False)
    assert list((tmp_path / "new").iterdir()) == []
