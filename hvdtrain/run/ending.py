"""What a training leaves at its end: result.json, the report, the closing table and how to go on."""

import json
import logging
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from hvdtrain.adapters.adapter_protocol import Adapter
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.engine.limits import RunResult
from hvdtrain.files import write_json
from hvdtrain.history.goodput import goodput
from hvdtrain.history.json_lines import JsonLines, size_of
from hvdtrain.history.metrics_end import read_metrics_end
from hvdtrain.history.run_facts import read_result
from hvdtrain.history.run_state import state_at_end
from hvdtrain.run.closing_table import print_table
from hvdtrain.run.prepare import RunSetup
from hvdtrain.run.result import Totals, result, shown_path
from hvdtrain.run.run_folder import RunFolder
from hvdtrain.run.sinks.terminal import table_columns

_SHORTEST_SECONDS: Final = 10.0
_MOST_BYTES: Final = 2**28
"""Of metrics.jsonl: to read it takes seconds, in which the other workers wait."""

_log = logging.getLogger("hvdtrain.run")


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


def write_report(run: Path, option: Literal["auto", "always", "never"], seconds: float) -> Path | None:
    """Write the report of the run in the folder `run`; where it lies, or None where there is none. Never raises.

    Args:
        option: of --report.
        seconds: that the training took; a short one gets a report only where it is asked for.
    """
    if option == "never" or (option == "auto" and seconds < _SHORTEST_SECONDS):
        return None
    if option == "auto" and size_of(run / "metrics.jsonl") > _MOST_BYTES:
        _log.info("no report.html was made: metrics.jsonl is large; `hvdtrain report %s` makes it", run)
        return None
    try:
        from hvdtrain.report.page_file import NAME, read_runs, write_page

        state = state_at_end(read_result(run), read_metrics_end(run / "metrics.jsonl"))
        write_page(run / NAME, read_runs([run], state))
    except Exception as error:  # a defect here must not cost the run, which is done
        _log.warning("report.html was not written: %s: %s", type(error).__name__, error)
        _log.debug("why report.html was not written", exc_info=True)
        return None
    return run / NAME


def how_to_continue(config: TrainConfig, folder: Path) -> str:
    """The end of a sentence: what to start, where `folder` is the run's."""
    changed = [] if config.output_dir else [f"--output-dir {folder}"]
    if config.resume != "auto":  # another value would be refused, as the folder now holds a run
        changed.append("--resume auto")
    return " ".join(["start the same command again", *(["with"] if changed else []), *changed])
