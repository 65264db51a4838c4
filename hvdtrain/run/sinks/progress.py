"""Progress on rank 0: a bar if its redraws are visible, otherwise lines."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, TextIO

from tqdm import tqdm

from hvdtrain.engine import events
from hvdtrain.engine.events import Event
from hvdtrain.measured import STEP
from hvdtrain.run.sinks.sink import SinkContext
from hvdtrain.run.sinks.terminal import Terminal
from hvdtrain.set_names import readable
from hvdtrain.units import in_measure

_REDRAWN_SECONDS = 0.2
_SHORTEST_SECONDS, _LONGEST_SECONDS, _SHARE = 2.0, 30.0, 0.1
"""Between two lines passes this share of the time since the start, within these bounds."""


def open_sink(context: SinkContext, stack: ExitStack) -> "Bar | Lines | None":
    """On rank 0 what `--progress` asks for; auto is a bar where standard error ends on a terminal that can redraw."""
    kind = context.config.progress
    if kind == "none" or not context.topology.is_root:
        return None
    terminal = Terminal(sys.stderr, context.topology.launcher)
    if kind == "lines" or (kind == "auto" and not terminal.redraws):
        return Lines(sys.stderr, max_steps=context.config.max_steps)
    bar = Bar(sys.stderr, terminal, context.config.max_steps)
    stack.callback(bar.close)
    return bar


class Bar:
    """A tqdm bar over all steps, drawn on `stream`, which ends at `terminal`."""

    def __init__(self, stream: TextIO, terminal: Terminal, max_steps: int | None = None) -> None:
        self._max_steps = max_steps
        self._stream = stream if terminal.is_direct else _ReturnLast(stream)
        self._terminal = terminal
        self._bar: _FittingBar | None = None
        self._epochs = 0

    def __call__(self, event: Event) -> None:
        match event:
            case events.RunStarted(step=step, total_steps=total, epochs=epochs):
                self._epochs = epochs
                self._bar = _FittingBar(self._terminal.columns, max(total, step), step, self._stream)
                if _nothing_left(event, self._max_steps):
                    self._bar.words["head"] = "nothing left to train "
            case events.StepEnded():
                self._require().update()
            case events.Logged(epoch=epoch, values=values, samples_per_second=speed):
                words, measure = self._require().words, next((name for name in values if name != "loss"), None)
                words["head"] = f"epoch {epoch + 1}/{self._epochs}  loss {in_measure(values['loss'])} "
                words["measure"] = f" {measure} {in_measure(values[measure])} " if measure is not None else ""
                words["speed"], words["shares"] = f"{speed:,.0f} samples/s", _shares(event)
            case events.Evaluated():
                self._require().words["validation"], self._require().words["best"] = _short(event)
            case events.StoppedEarly():
                self._require().words |= {"head": "stopped early ", "measure": ""}
            case events.RunEnded() | events.RunFailed():
                self.close()

    def close(self) -> None:
        """Draw it for the last time and leave its line; what follows, an error too, begins on a line of its own."""
        if self._bar is not None:
            self._bar.close()

    def _require(self) -> "_FittingBar":
        if self._bar is None:
            raise RuntimeError("an event came before RunStarted")
        return self._bar


class _FittingBar(tqdm):  # type: ignore[type-arg]  # which the class itself does not take
    """Shows as much beside the bar as the terminal is wide, the most important first."""

    def __init__(self, columns: Callable[[], int], total: int, step: int, stream: "TextIO | _ReturnLast") -> None:
        self.words = dict.fromkeys(("head", "measure", "speed", "shares", "validation", "best"), "")
        self._columns = columns
        # Without `nrows`, tqdm asks the terminal, and draws nothing where that has no size (docker exec, expect).
        super().__init__(total=total, initial=step, file=stream, mininterval=_REDRAWN_SECONDS, miniters=1, nrows=20)

    @property
    def format_dict(self) -> dict[str, Any]:  # what tqdm draws from, and lets users extend
        facts = {**super().format_dict, **self.words, "ncols": None}  # without `ncols`, a bar is 10 wide
        columns = self._columns()
        for layout in self._layouts():
            if len(self.format_meter(**{**facts, "bar_format": layout})) <= columns:
                break
        return {**facts, "ncols": columns, "bar_format": layout}

    def _layouts(self) -> Iterator[str]:
        """From the longest to the shortest; the last one is cut where it does not fit."""
        speed, shares, validation, best = (
            f"{{{word}}}" if self.words[word] else "" for word in ("speed", "shares", "validation", "best")
        )
        last_validation = f"validation {validation}{best}" if validation else ""
        if self.words["measure"]:  # of training
            end = [*filter(None, ("{elapsed}<{remaining}", speed, shares, last_validation))]
            yield f"{{head}}{{measure}}|{{bar}}| {{n_fmt}}/{{total_fmt}} [{', '.join(end)}]"
        for shown in (
            ("{elapsed}<{remaining}", speed, shares, last_validation),
            ("{elapsed}<{remaining}", speed, last_validation),
            ("{remaining} left", speed, last_validation),
            ("{remaining} left", speed, validation + best),
            ("{remaining} left", speed, validation),
            ("{remaining} left", validation),
            ("{remaining} left",),
        ):
            yield f"{{head}}|{{bar}}| {{n_fmt}}/{{total_fmt}} [{', '.join(filter(None, shown))}]"
        yield "{head}|{bar}| {n_fmt}/{total_fmt}"
        yield "{head}{n_fmt}/{total_fmt}"


class _ReturnLast:
    """Launchers pass on what ends with a carriage return; tqdm begins with it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        self._stream.write(f"{text[1:]}\r" if text.startswith("\r") else text)

    def flush(self) -> None:
        self._stream.flush()


class Lines:
    """One line when training has begun, one line an epoch, and others between them where epochs are long.

    Programs read them too: measures as "train loss 0.5", with no separators in numbers (docs/sagemaker.md).
    """

    def __init__(
        self, stream: TextIO, clock: Callable[[], float] = time.monotonic, max_steps: int | None = None
    ) -> None:
        self._max_steps = max_steps
        self._stream = stream
        self._clock = clock
        self._epochs = self._total = 0
        self._begun: tuple[int, float] | None = None  # the first step that this process has logged, and when
        self._next_at = 0.0
        self._newest: events.Logged | None = None
        self._validation = ""

    def __call__(self, event: Event) -> None:
        match event:
            case events.RunStarted(epochs=epochs, step=step, total_steps=total):
                self._epochs, self._total = epochs, total
                done = _nothing_left(event, self._max_steps)
                self._print(done or f"training from step {step} to {total}, {epochs} epochs")
            case events.StepEnded(epoch=epoch, step=step):
                if self._begun is not None and self._clock() >= self._next_at:
                    self._print_step(epoch, step, *self._begun)
            case events.Logged(epoch=epoch, step=step):
                self._newest = event
                if self._begun is None:
                    self._begun = step, self._clock()
                    self._print_step(epoch, step, *self._begun)
            case events.Evaluated(values=values):
                self._validation = f"  validation {format_values(values)}" + (" (best)" if event.is_best else "")
            case events.EpochEnded(epoch=epoch):
                self._print(f"epoch {epoch + 1}/{self._epochs}  {self._trained()}{self._validation}")
            case events.StoppedEarly():
                self._print(f"stopped early {event.reason}")
            case events.RunEnded(step=step, finished=False):
                self._print(f"stopped at step {step}  {self._trained()}{self._validation}")

    def _print_step(self, epoch: int, step: int, first: int, begin: float) -> None:
        left = ""
        if step > first:
            seconds = (self._clock() - begin) / (step - first) * (self._total - step)
            left = f"  {tqdm.format_interval(seconds)} left"
        shares = _shares(self._newest) if self._newest is not None else ""
        place = f"epoch {epoch + 1}/{self._epochs} step {step}/{self._total}"
        self._print(f"{place}  {self._trained(step)}{left}{'  ' if shares else ''}{shares}")

    def _trained(self, step: int | None = None) -> str:
        """Args: `step`: where training is; measures are not asked for at each step."""
        if self._newest is None:
            return ""
        of_step = f" (step {self._newest.step})" if step not in (None, self._newest.step) else ""
        return f"train {format_values(self._newest.values)}{of_step}  {self._newest.samples_per_second:.0f} samples/s"

    def _print(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()
        now = self._clock()
        since = 0.0 if self._begun is None else now - self._begun[1]
        self._next_at = now + min(max(since * _SHARE, _SHORTEST_SECONDS), _LONGEST_SECONDS)


def _nothing_left(start: events.RunStarted, max_steps: int | None) -> str:
    """What says so of a run that goes on behind the end which it was given now; "" where something is left."""
    if max_steps is not None and max_steps < start.total_steps:
        end, limit = max_steps, f"--max-steps {max_steps}"
    else:
        end, limit = start.total_steps, f"--epochs {start.epochs} ({start.total_steps} steps)"
    return f"{start.step} steps are trained already; nothing is left to train of {limit}" if start.step >= end else ""


def _short(event: events.Evaluated) -> tuple[str, str]:
    """One measure, the one that decides if it is not the loss; and the best so far where it is another."""
    values, best = event.values, event.best
    chosen = best.metric if best is not None else ""
    name = readable(values, chosen)
    shown = f"{name} {in_measure(values[name])}"
    if best is None or event.is_best:
        return shown, " (best)" if event.is_best else ""
    return shown, f" (best{'' if name == chosen else f' {chosen}'} {in_measure(best.value)})"


def _shares(event: events.Logged) -> str:
    """Of the time since the last reading, over all ranks: "data 2% compute 80% allreduce 18%"."""
    ranks = event.rank_seconds if event.summary is None else (event.summary.mean,)
    parts = {part: sum(getattr(rank, part) for rank in ranks) for part in STEP}
    total = sum(parts.values())
    return " ".join(f"{part} {value / total:.0%}" for part, value in parts.items()) if total else ""


def format_values(values: Mapping[str, float]) -> str:
    """`loss 0.0512  accuracy 0.9833`."""
    return "  ".join(f"{name} {in_measure(value)}" for name, value in values.items())
