"""What starts commands, for every test here: tests are imported by file, so they import no neighbour by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import launching


@pytest.fixture(scope="session", autouse=True)
def _warm_interpreters() -> Iterator[None]:
    yield
    launching.warm().close()


@pytest.fixture(scope="session")
def run_ranks() -> Callable[..., Any]:
    """`launching.run_ranks`."""
    return launching.run_ranks


@pytest.fixture(scope="session")
def run_command() -> Callable[..., Any]:
    """`launching.run_command`."""
    return launching.run_command


@pytest.fixture(scope="session")
def with_interpreter() -> Callable[..., list[str]]:
    """`launching.with_interpreter`, for tests that start processes by themselves."""
    return launching.with_interpreter


@pytest.fixture(scope="session")
def watch_terminal() -> Callable[..., str]:
    """`launching.watch_terminal`, of a training command under a launcher of `launching.launcher_argv`, or "local"."""

    def watch(launcher: str, np: int, command: list[str], *args: Any, **named: Any) -> str:
        before = launching.launcher_argv(launcher, np) if launcher != "none" else []  # type: ignore[arg-type]
        return launching.watch_terminal([*before, sys.executable, "-m", "hvdtrain", *command], *args, **named)

    return watch
