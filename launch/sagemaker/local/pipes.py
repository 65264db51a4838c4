"""FIFOs on this machine, fed by `hvdtrain shard pipe-sim` as SageMaker's agent would feed them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, final

from hvdtrain.errors import HvdtrainError

_ALL_EPOCHS = 1_000_000  # the agent feeds as long as somebody reads
_END_SECONDS = 10.0


@final
class PipeFeeder:
    """Feeds the Pipe channels of one container between entering and leaving, and leaves no FIFO behind.

    Args:
        data: folder of the FIFOs, /opt/ml/input/data of the container.
        channels: name → folder whose files it delivers, in the order of their names.
        log: file for what the simulator says.
        environment: its variables, with the mark of the job, so that the job's guard finds it.
    """

    def __init__(self, data: Path, channels: Mapping[str, Path], log: Path, environment: Mapping[str, str]) -> None:
        self._data, self._channels, self._log, self._environment = data, channels, log, environment
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        if self._channels:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    self._command(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=dict(self._environment),
                    start_new_session=True,
                )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def require_running(self) -> None:
        """Raise HvdtrainError if the simulator has ended, which it does only when something is wrong."""
        if self._process is not None and self._process.poll() is not None:
            said = self._log.read_text(errors="replace").strip()
            raise HvdtrainError(
                f"The simulator of the pipes has ended: {said[-600:] or 'it said nothing'}.",
                "Workers would wait for their data.",
                f"see {self._log}.",
            )

    def _command(self) -> Sequence[str]:
        named = [word for name, folder in self._channels.items() for word in ("--channel", f"{name}={folder}/*")]
        command = [sys.executable, "-m", "hvdtrain", "shard", "pipe-sim", "--dir", str(self._data)]
        return [*command, "--epochs", str(_ALL_EPOCHS), *named]
