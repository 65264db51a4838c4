"""Progress on rank 0: a bar where somebody watches, lines where a file collects."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Never, TextIO

from tqdm import tqdm

from hvdtrain import events
from hvdtrain.events import Event

_BAR_FORMAT = "{desc} |{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
_ANCESTORS = 8  # launchers put no more processes than this between the terminal and a worker


class Bar:
    """A tqdm bar over all steps. It redraws by carriage returns, which horovodrun and mpirun pass on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bar: tqdm[Never] | None = None
        self._epochs = 0
        self._speed = ""
        self._validation = ""

    def __call__(self, event: Event) -> None:
        match event:
            case events.RunStarted(step=step, total_steps=total, epochs=epochs):
                self._epochs = epochs
                self._bar = tqdm(
                    total=total, initial=step, file=self._stream, ncols=100, mininterval=0.2, bar_format=_BAR_FORMAT
                )
            case events.StepEnded():
                self._require().update()
            case events.Logged(epoch=epoch, values=values, samples_per_second=speed):
                self._require().set_description_str(
                    f"epoch {epoch + 1}/{self._epochs}  loss {values['loss']:.4f}", refresh=False
                )
                self._speed = f"{speed:,.0f} samples/s"
                self._show()
            case events.Evaluated():
                self._validation = ", " + _short(event)
                self._show()
            case events.StoppedEarly():
                self._require().set_description_str("stopped early", refresh=False)
            case events.RunEnded():
                self._require().close()
            case _:
                pass

    def _show(self) -> None:
        self._require().set_postfix_str(self._speed + self._validation, refresh=False)

    def _require(self) -> tqdm[Never]:
        if self._bar is None:
            raise RuntimeError("an event came before RunStarted")
        return self._bar


class Lines:
    """One line an epoch."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._epochs = 0
        self._train = ""
        self._validation = ""

    def __call__(self, event: Event) -> None:
        match event:
            case events.RunStarted(epochs=epochs, step=step, total_steps=total):
                self._epochs = epochs
                self._print(f"training from step {step} to {total}, {epochs} epochs")
            case events.Logged(values=values, samples_per_second=speed):
                self._train = f"train {format_values(values)}  {speed:,.0f} samples/s"
            case events.Evaluated(values=values):
                self._validation = f"  validation {format_values(values)}" + (" (best)" if event.is_best else "")
            case events.EpochEnded(epoch=epoch):
                self._print(f"epoch {epoch + 1}/{self._epochs}  {self._train}{self._validation}")
            case events.StoppedEarly():
                self._print(f"stopped early {event.reason}")
            case events.RunEnded(step=step, finished=False):
                self._print(f"stopped at step {step}  {self._train}{self._validation}")
            case _:
                pass

    def _print(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()


def progress_callback(kind: Literal["auto", "bar", "lines", "none"], stream: TextIO) -> events.Callback | None:
    """What `--progress` asks for; auto is a bar where `stream` ends on a terminal, through launchers too."""
    if kind == "none":
        return None
    wants_bar = kind == "bar" or (kind == "auto" and (stream.isatty() or _launcher_has_terminal()))
    return Bar(stream) if wants_bar else Lines(stream)


def _short(event: events.Evaluated) -> str:
    """One measure, the one that decides if it is not the loss, and the best so far where it is another."""
    values, best = event.values, event.best
    chosen = best.metric if best is not None else "loss"
    name = chosen if chosen != "loss" else next((n for n in values if n != "loss"), "loss")
    if best is None or event.is_best:
        return f"{name} {values[name]:.4f}" + (" (best)" if event.is_best else "")
    return f"{name} {values[name]:.4f} (best{'' if name == chosen else f' {chosen}'} {best.value:.4f})"


def format_values(values: Mapping[str, float]) -> str:
    """`loss 0.0512  accuracy 0.9833`."""
    return "  ".join(f"{name} {value:.4f}" for name, value in values.items())


def _launcher_has_terminal() -> bool:
    """Whether the nearest ancestor that does not itself write into a pipe writes to a terminal.

    Launchers read workers' outputs from pipes and pass them on, so a worker's own stream never is a terminal.
    """
    process = os.getppid()
    for _ in range(_ANCESTORS):
        try:
            target = os.readlink(f"/proc/{process}/fd/{sys.stderr.fileno()}")
            if not target.startswith(("pipe:", "socket:")):
                return target.startswith(("/dev/pts/", "/dev/tty"))
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return False  # not Linux, or the ancestor is gone or another user's: lines are always right
    return False
