"""Arguments of `hvdtrain.run`, `evaluate` and `predict` that cannot be meant are refused; and what can be sent."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import hvdtrain
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
