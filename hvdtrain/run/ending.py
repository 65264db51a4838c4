"""What a training leaves at its end: result.json, the report, the closing table and how to go on."""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from hvdtrain.adapters.adapter_protocol import Adapter
from hvdtrain.engine.limits import RunResult
from hvdtrain.files import write_json
from hvdtrain.history.goodput import goodput
from hvdtrain.history.lines import JsonLines
from hvdtrain.run.closing_table import write_report
from hvdtrain.run.prepare import RunSetup
from hvdtrain.run.result import Totals, how_to_continue, print_table, result, shown_path
from hvdtrain.run.run_folder import RunFolder
from hvdtrain.run.sinks.terminal import table_columns


@dataclass
class Ending:
    """result.json and the closing table; a run that trained nothing leaves a result of its kind alone.

    Attributes:
        begin: `time.perf_counter()` when the process began its work.
        start_seconds: from then until training began.
        launcher: as `Topology.launcher`.
    """

    setup: RunSetup
    adapter: Adapter
    folder: RunFolder
    totals: Totals
    begin: float
    start_seconds: float
    launcher: str

    def write(self, outcome: RunResult) -> None:
        """Before sinks and callbacks learn of the end: what they make of it does not cost the result."""
        seconds = time.perf_counter() - self.begin, self.start_seconds
        self._summary = result(self.setup.about, outcome, self.totals, seconds, self.adapter.parameter_count())
        self._summary["goodput"] = goodput(JsonLines(self.folder.metrics), time.time())
        before = self.folder.result
        is_kept = not self.totals.samples and before.exists()
        self._keeps_before = is_kept and json.loads(before.read_text())["status"] == self._summary["status"]
        if not self._keeps_before:
            write_json(before, self._summary)

    def _report(self, outcome: RunResult) -> Path | None:
        """Who has sent a signal gives a job some seconds to end: then a report is made only if it is asked for."""
        option, seconds = self.setup.config.report, self._summary["seconds"]["total"]
        if option == "auto" and "SIG" in outcome.stopped_by:
            return None
        return write_report(self.folder.path, option, seconds)

    def print(self, outcome: RunResult) -> None:
        """After the sinks have left the terminal."""
        folder = self.folder.path
        if self._keeps_before and not outcome.stopped_by:
            print("nothing was left to train; result.json stays as it was", flush=True)
        report, option = self._report(outcome), self.setup.config.report
        shown = f"`hvdtrain report {shown_path(folder)}` draws it" if report is None else shown_path(report)
        columns = table_columns(sys.stdout, self.launcher)
        print_table(self._summary, shown_path(folder), None if option == "never" else shown, columns)
        if outcome.stopped_by:
            print(
                f"hvdtrain: stopped by {outcome.stopped_by} after step {outcome.step}, which a checkpoint holds; "
                f"to go on, {how_to_continue(self.setup.config, folder)}",
                flush=True,
            )
