"""`run_ranks` and `run_command` for every test here: tests are imported by file, so import no neighbour by name."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="session")
def run_ranks() -> Callable[..., Any]:
    """`launching.run_ranks`."""
    function: Callable[..., Any] = _launching().run_ranks
    return function


@pytest.fixture(scope="session")
def run_command() -> Callable[..., Any]:
    """`launching.run_command`."""
    function: Callable[..., Any] = _launching().run_command
    return function


@pytest.fixture(scope="session")
def watch_terminal() -> Callable[..., str]:
    """`launching.watch_terminal`, of a training command under a launcher of `launching.launcher_argv`, or "local"."""

    def watch(launcher: str, np: int, command: list[str], *args: Any, **named: Any) -> str:
        before = _launching().launcher_argv(launcher, np) if launcher != "none" else []
        shown: str = _launching().watch_terminal([*before, sys.executable, "-m", "hvdtrain", *command], *args, **named)
        return shown

    return watch


def _launching() -> ModuleType:
    name = "tests_parallel_launching"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / "launching.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
