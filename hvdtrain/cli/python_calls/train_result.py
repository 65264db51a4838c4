"""What `hvdtrain.train` returns: result.json's content, and what a notebook does next with a run."""

import html
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hvdtrain.errors import UsageError
from hvdtrain.history.columns import read_columns
from hvdtrain.task.task import Task


class RunReport:
    """A run's report.html: `path` is the file; a notebook shows the page where this object is a cell's value."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _repr_html_(self) -> str:
        """The page in a frame, so that its styles and the notebook's do not mix."""
        page = html.escape(self.path.read_text(encoding="utf-8"), quote=True)
        return f'<iframe srcdoc="{page}" sandbox="" style="width: 100%; height: 40em; border: 0"></iframe>'

    def __repr__(self) -> str:
        return f"RunReport({str(self.path)!r})"


class TrainResult(dict[str, Any]):
    """A mapping: the content of result.json, and "run_folder" as text. What was read from files is read again each
    time.

    With dry_run=True it is {"status": "checked"}, and there is no run: every attribute raises UsageError.
    """

    def __init__(self, content: Mapping[str, Any], kind: type[Task] | None = None) -> None:
        super().__init__(content)
        self._kind = kind

    @property
    def run_folder(self) -> Path:
        """The folder of the run: absolute."""
        if "run_folder" not in self:
            raise UsageError(
                "This training was only checked.", "With dry_run=True there is no run.", "call it without dry_run."
            )
        return Path(self["run_folder"])

    @property
    def metrics(self) -> dict[str, Any]:
        """The last values of the task's measures: name → float. What was not finite is NaN."""
        values = self["metrics"] if self.run_folder else {}
        return {name: math.nan if value is None else value for name, value in values.items()}

    @property
    def history(self) -> dict[str, list[Any]]:
        """A table with a row for each line of training and validation in metrics.jsonl, as columns of equal length.

        `pandas.DataFrame(result.history)` and `polars.DataFrame(result.history)` take it. Column "split" is "train" or
        "validation"; a value that a line does not have is None.
        """
        return read_columns(self.run_folder)

    def model(self, checkpoint: str = "best", *, averaged: bool = False) -> Any:
        """The trained model: a torch module in evaluation mode, or a Keras model, built by the task.

        Args:
            checkpoint: "best", which is the last one where no validation chose any; or "last".
            averaged: take the exponential moving averages of the weights.

        Raises:
            UsageError: there is no such checkpoint, or the task cannot build its model without its data.
        """
        from hvdtrain.weights.trained_model import trained_model

        return trained_model(self.run_folder, checkpoint, averaged, self._kind)

    def report(self) -> RunReport:
        """Write report.html into the run folder, as `hvdtrain report` does. Raises UsageError: it cannot be written."""
        from hvdtrain.report.page import NAME, read_runs, write_page

        path = self.run_folder / NAME
        write_page(path, read_runs([self.run_folder]))
        return RunReport(path)


def result_in(folder: Path, kind: type[Task] | None) -> TrainResult:
    """The result of the run in `folder`; `kind` is the task's class, where the caller gave one."""
    folder = folder.absolute()
    return TrainResult({**json.loads((folder / "result.json").read_text()), "run_folder": str(folder)}, kind)
