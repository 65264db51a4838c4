"""The process that plays one container."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Self, final

from hvdtrain.launch.sagemaker.container.contract import BASE_VARIABLE, Folders
from hvdtrain.launch.sagemaker.container.workers import GRACE_SECONDS
from hvdtrain.launch.sagemaker.failure import FILE

END_SECONDS = GRACE_SECONDS + 20.0
"""SIGTERM to SIGKILL, as SageMaker has it."""


@final
class LocalContainer:
    """Runs what an image's `train` runs; ended politely, and then not, if it still runs when the block ends.

    Args:
        folders: its own.
        environment: variables that all containers have in common.
    """

    def __init__(self, folders: Folders, environment: Mapping[str, str]) -> None:
        self.folders = folders
        self._environment = {**environment, BASE_VARIABLE: str(folders.base)}
        self._is_asked = False

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hvdtrain.launch.sagemaker.train_entry"],
            stdin=subprocess.DEVNULL,
            cwd=self.folders.base,
            env=self._environment,
            start_new_session=True,
        )
        self.pidfd = os.pidfd_open(self.process.pid)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            if not self._is_asked:  # a second signal would end the time that workers have to save in
                self.send(signal.SIGTERM)
            try:
                self.process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        os.close(self.pidfd)

    def send(self, number: signal.Signals) -> None:
        """Pass a signal on, unless it has ended."""
        self._is_asked = True
        self.process.send_signal(number)

    @property
    def account(self) -> tuple[str, str]:
        """What it left of its failure, and the HINT of that; either may be empty."""
        path = self.folders.output / FILE
        text = path.read_text(errors="replace").strip() if path.exists() else ""
        hint = re.search(r"^HINT: (.*)$|HINT: (.*)$", text, re.MULTILINE)
        return (text[: hint.start()].strip(), hint[1] or hint[2]) if hint else (text, "")
