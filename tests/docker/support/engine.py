"""Docker or Podman, as a command line."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

WAIT_SECONDS = 300.0
BUILD_SECONDS = 3600.0


@dataclass(frozen=True)
class Engine:
    """How containers are built and run here.

    Args:
        command: the engine and its global flags.
        build_flags, run_flags: what this machine needs besides: mirrors, certificates, limits.
    """

    command: tuple[str, ...]
    build_flags: tuple[str, ...]
    run_flags: tuple[str, ...]

    def call(self, *words: str, timeout: float = WAIT_SECONDS, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs one command of the engine; with `check`, a failure is an AssertionError with its output."""
        run = subprocess.run(
            [*self.command, *words], capture_output=True, text=True, errors="replace", timeout=timeout, check=False
        )
        if check:
            assert run.returncode == 0, f"{shlex.join(words)}\n{run.stdout[-4000:]}\n{run.stderr[-4000:]}"
        return run

    def run(
        self, image: str, *words: str, flags: tuple[str, ...] = (), timeout: float = WAIT_SECONDS, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """A container of its own for one command, removed afterwards, also when it takes longer than `timeout`."""
        name = f"hvdtrain-check-{uuid.uuid4().hex[:12]}"
        try:
            return self.call(
                "run", "--rm", "--name", name, *self.run_flags, *flags, image, *words, timeout=timeout, check=check
            )
        except subprocess.TimeoutExpired:
            self.call("rm", "--force", name, check=False)
            raise

    @contextmanager
    def running(self, image: str, *words: str, flags: tuple[str, ...] = ()) -> Iterator[str]:
        """The name of a container that runs in the background, and is removed afterwards."""
        name = f"hvdtrain-check-{uuid.uuid4().hex[:12]}"
        try:
            self.call("run", "--detach", "--name", name, *self.run_flags, *flags, image, *words)
            yield name
        finally:
            self.call("rm", "--force", "--volumes", name, check=False)

    @contextmanager
    def volume(self) -> Iterator[str]:
        """The name of an empty volume."""
        name = f"hvdtrain-check-{uuid.uuid4().hex[:12]}"
        self.call("volume", "create", name)
        try:
            yield name
        finally:
            self.call("volume", "rm", "--force", name, check=False)


def find_engine() -> Engine | None:
    """HVDTRAIN_ENGINE, else a Docker whose daemon answers, else Podman; None without any.

    HVDTRAIN_ENGINE_BUILD_FLAGS and HVDTRAIN_ENGINE_RUN_FLAGS are added to builds and runs.
    """
    flags = [tuple(shlex.split(os.environ.get(f"HVDTRAIN_ENGINE_{kind}_FLAGS", ""))) for kind in ("BUILD", "RUN")]
    wanted = shlex.split(os.environ.get("HVDTRAIN_ENGINE", ""))
    for command in [wanted] if wanted else [["docker"], ["podman"]]:
        if shutil.which(command[0]) and _answers(command):
            return Engine(tuple(command), *flags)
    return None


def _answers(command: list[str]) -> bool:
    run = subprocess.run([*command, "info"], capture_output=True, timeout=60, check=False)
    return run.returncode == 0
