"""`run_ranks` for every test here: tests are imported by file, so they cannot import a neighbour by name."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def run_ranks() -> Callable[..., Any]:
    """`launching.run_ranks`."""
    path = Path(__file__).parent / "launching.py"
    spec = importlib.util.spec_from_file_location("tests_parallel_launching", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    function: Callable[..., Any] = module.run_ranks
    return function
