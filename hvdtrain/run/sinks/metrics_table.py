"""metrics.csv: the metrics as a table, for spreadsheets and data frames."""

import csv
import functools
import io
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, TextIO

from data_sharding.atomic import atomic_file
from hvdtrain.engine import events
from hvdtrain.engine.events import Event
from hvdtrain.files import open_lines
from hvdtrain.measured import METRICS, PARTS, known_metrics, mean_seconds
from hvdtrain.run.sinks.sink import SinkContext

COLUMNS: Final = (
    *("time", "split", "epoch", "step", "samples"),
    *(metric.name for metric in METRICS if metric.kind == "count"),
    "best",
    *(metric.name for metric in METRICS if metric.kind != "count"),
    *(f"seconds_{part.name}" for part in PARTS),
)
"""Of every table, before the columns of the task's measures."""

_MEASURE: Final = "measure:"


def open_sink(context: SinkContext, stack: ExitStack) -> "MetricsTable | None":
    if not context.topology.is_root:
        return None
    table = MetricsTable(context.folder.metrics_table)
    stack.callback(table.close)
    return table


class MetricsTable:
    """Appends one row for each `Logged` and `Evaluated`. A resumed run appends; the last row of a step counts.

    The header is that of the first row and stays. A measure that comes later gets a column after the last one: the file
    is written again with empty cells in the rows before, and takes the place of the old one as a whole.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None
        self._columns: dict[str, None] = {}

    def __call__(self, event: Event) -> None:
        match event:
            case events.StepEnded():
                pass
            case events.Logged():
                self._append(_training_row(event), event.values)
            case events.Evaluated():
                self._append(_validation_row(event), event.values)

    def close(self) -> None:
        """The next row opens the file again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, own: dict[str, Any], measures: Mapping[str, float]) -> None:
        row = own | {column_of(name): value for name, value in measures.items()}
        if self._file is None:
            self._file = self._opened()
            with self._path.open(encoding="utf-8", newline="") as file:
                self._columns = dict.fromkeys(next(csv.reader([file.readline()]), []))
            self._widen([name for name in COLUMNS if name not in self._columns])
        self._widen([name for name in row if name not in self._columns])
        self._rows.writerow(map(row.get, self._columns))
        self._file.flush()

    def _opened(self) -> TextIO:
        file = open_lines(self._path)  # without the part of a row that a killed run may have left
        self._rows = _writer(file)
        return file

    def _widen(self, new: list[str]) -> None:
        if new:
            self.close()
            self._columns |= dict.fromkeys(new)
            _widen(self._path, list(self._columns), len(new))
            self._file = self._opened()


@functools.lru_cache(256)
def column_of(measure: str) -> str:
    """The column of a measure: its name, unless that is one of the table's own. Ends of lines in it are escaped: a row
    is a line."""
    plain = measure.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"{_MEASURE}{plain}" if plain in COLUMNS or plain.startswith(_MEASURE) else plain


def _writer(file: TextIO) -> Any:
    return csv.writer(file, lineterminator="\n")


def _widen(path: Path, columns: list[str], more: int) -> None:
    """Write `columns` as the header, and `more` empty cells at the end of each row. One row at a time."""
    header = io.StringIO()
    _writer(header).writerow(columns)
    with path.open("rb") as old, atomic_file(path) as new:
        old.readline()
        new.write(header.getvalue().encode())
        new.writelines(row.rstrip(b"\n") + b"," * more + b"\n" for row in old)


def _place(split: str, event: events.Logged | events.Evaluated) -> dict[str, Any]:
    at = round(time.time(), 3)
    return {"time": at, "split": split, "epoch": event.epoch, "step": event.step, "samples": event.samples}


def _training_row(event: events.Logged) -> dict[str, Any]:
    return {
        **_place("train", event),
        **{metric.name: metric.rounded(metric.as_number(value)) for metric, value in known_metrics(event)},
        **{f"seconds_{part}": round(mean, 6) for part, mean in mean_seconds(event).items()},
    }


def _validation_row(event: events.Evaluated) -> dict[str, Any]:
    best = {"best": 1} if event.is_best else {}
    return {**_place("validation", event), "seconds_validation": round(event.seconds, 6), **best}
