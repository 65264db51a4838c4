"""What a training leaves at its end: result.json, the report, the closing table and how to go on."""

import json
import logging
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from hvdtrain.adapters.adapter_protocol import Adapter
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.engine.events import StoppedEarly
from hvdtrain.engine.limits import RunResult
from hvdtrain.files import finite, write_atomically, write_json
from hvdtrain.history.goodput import goodput
from hvdtrain.history.metrics_end import read_metrics_end
from hvdtrain.history.reading import JsonLines, number, size_of
from hvdtrain.history.run_facts import read_result
from hvdtrain.history.run_state import state_at_end
from hvdtrain.measured import STEP
from hvdtrain.run.prepare import RunSetup
from hvdtrain.run.result import Totals, result, shown_path
from hvdtrain.run.run_folder import RunFolder
from hvdtrain.run.sinks.terminal import printable, table_columns
from hvdtrain.units import in_measure

_SHORTEST_SECONDS: Final = 10.0
_MOST_BYTES: Final = 2**28  # of metrics.jsonl: to read it takes seconds, in which the other workers wait

_MOST_ROWS: Final = 4  # of stragglers
_BORDERS: Final = len("│  │  │")

_log = logging.getLogger("hvdtrain.run")


@dataclass
class Ending:
    """result.json and the closing table; a start that trained nothing leaves a result of its kind alone, and
    config.yaml and env.json say again how that was made."""

    setup: RunSetup
    adapter: Adapter
    folder: RunFolder
    totals: Totals
    begin: float  # `time.perf_counter()` when the process began its work
    start_seconds: float  # from then until training began
    launcher: str
    before: Mapping[Path, bytes]  # config.yaml and env.json of the start before

    def write(self, outcome: RunResult) -> None:
        """Before sinks and callbacks learn of the end: what they make of it does not cost the result."""
        seconds = time.perf_counter() - self.begin, self.start_seconds
        self._long_s, self._kept = seconds[0], dict[str, Any]()
        self._summary = result(self.setup.about, outcome, self.totals, seconds, self.adapter.parameter_count())
        self._summary["goodput"] = goodput(JsonLines(self.folder.metrics), time.time())
        before = self.folder.result
        is_kept = not self.totals.samples and before.exists()
        self._keeps_before = is_kept and json.loads(before.read_text())["status"] == self._summary["status"]
        if self._keeps_before:
            for file, content in self.before.items():
                write_atomically(file, content)
            before.touch()  # who has started the job sees that it has come to its end
            kept, goodput_now = json.loads(before.read_text()), self._summary["goodput"]
            self._kept = kept
            self._long_s = max(self._long_s, number(kept.get("seconds") or {}, "total") or 0.0)
            if goodput_now["restarts"] != (kept.get("goodput") or {}).get("restarts"):
                self._kept = {**kept, "goodput": goodput_now}
                write_json(before, finite(self._kept))
        else:
            write_json(before, finite(self._summary))

    def print(self, outcome: RunResult) -> None:
        """After the sinks have left the terminal."""
        folder, option = self.folder.path, self.setup.config.report
        if self._keeps_before and not outcome.stopped_by:
            print("nothing was left to train; result.json stays as it was", flush=True)
        # Who has sent a signal gives a job some seconds to end: then a report is made only if it is asked for.
        is_hurried = option == "auto" and "SIG" in outcome.stopped_by
        report = None if is_hurried else write_report(folder, option, self._long_s)
        shown = (
            f"`hvdtrain report {shlex.quote(shown_path(folder))}` draws it" if report is None else shown_path(report)
        )
        columns = table_columns(sys.stdout, self.launcher)
        about = shown_path(folder), None if option == "never" else shown, columns
        try:
            print_table(self._kept or self._summary, *about)
        except (KeyError, TypeError, AttributeError, ValueError):  # an older version has left that result
            print_table(self._summary, *about)
        if outcome.stopped_by:
            config = self.setup.config
            asked = replace(config, resume=self.setup.asked_resume or config.resume)
            print(
                f"hvdtrain: stopped by {outcome.stopped_by} after step {outcome.step}, which a checkpoint holds; "
                f"to go on, {how_to_continue(asked, folder)}",
                flush=True,
            )


def write_report(run: Path, option: Literal["auto", "always", "never"], seconds: float) -> Path | None:
    """Write the report of the run in the folder `run`, whose training took so many seconds; where it lies, or None
    where there is none. Never raises."""
    if option == "never" or (option == "auto" and seconds < _SHORTEST_SECONDS):
        return None
    if option == "auto" and size_of(run / "metrics.jsonl") > _MOST_BYTES:
        command = f"hvdtrain report {shlex.quote(str(run))}"
        _log.info("no report.html was made: metrics.jsonl is large; `%s` makes it", command)
        return None
    try:
        from hvdtrain.report.page import NAME, read_runs, write_page

        state = state_at_end(read_result(run), read_metrics_end(run / "metrics.jsonl"))
        write_page(run / NAME, read_runs([run], state))
    except Exception as error:  # a defect here must not cost the run, which is done
        _log.warning("report.html was not written: %s: %s", type(error).__name__, error)
        _log.debug("why report.html was not written", exc_info=True)
        return None
    return run / NAME


def how_to_continue(config: TrainConfig, folder: Path) -> str:
    """The end of a sentence: what to start, where `folder` is the run's."""
    changed = [] if config.output_dir else [f"--output-dir {shlex.quote(str(folder))}"]
    if config.resume != "auto":  # another value would be refused, or go back again
        changed.append("--resume auto")
    return " ".join(["start the same command again", *(["with"] if changed else []), *changed])


def print_table(result: dict[str, Any], folder: str, report: str | None = None, columns: int = 100) -> None:
    """The closing table on standard output, at most `columns` wide; below it, paths that are too long for it. `report`:
    a path, or what makes the report."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = list(_rows(result))
    paths = {"run folder": folder} | ({} if report is None else {"report": report})
    beside = max(cell_len(name) for name in [*(name for name, _ in rows), *paths]) + _BORDERS
    below = {name: path for name, path in paths.items() if beside + cell_len(path) > columns}
    title = Text(f"{result['task']} in {result['framework']}: {result['status']}", style="table.title")
    table = Table(show_header=False, title=title)
    table.add_column()
    table.add_column(overflow="fold")
    for row in [*rows, *((name, path) for name, path in paths.items() if name not in below)]:
        table.add_row(*(Text(printable(cell)) for cell in row))  # Text: brackets in a name are no markup
    # No colours: mpirun shows workers a terminal even where there is none.
    Console(width=columns, color_system=None).print(table)
    for name, path in below.items():
        print(f"{name}: {path}")  # which the terminal breaks, so that it can be copied


def _rows(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Names and values, from result.json's content."""
    seconds = result["seconds"]
    for name, value in result["metrics"].items():
        yield f"validation {name}" if result["best"] else name, in_measure(value)
    if best := result["best"]:
        where = f"step {best['step']}, of epoch {best['epoch'] + 1}: {best['metric']} {in_measure(best['value'])}"
        yield "best checkpoint", where
    if result["stopped_early"]:
        yield "stopped early", StoppedEarly(**result["stopped_early"]).reason
    yield "workers", f"{result['world_size']}, global batch {result['global_batch_size']}"
    yield "speed", f"{result['samples_per_second']:,.0f} samples/s"
    this = " of this start" if result.get("goodput", {}).get("restarts") else ""
    yield f"time{this}", f"{seconds['total']:.1f} s, of which {seconds['start']:.1f} s to start"
    yield "a step's time", _step_shares(seconds)
    for straggler in result.get("stragglers", [])[:_MOST_ROWS]:
        yield "slow", _slow(straggler)
    if result.get("goodput", {}).get("restarts"):
        yield "restarts", _restarts(result["goodput"])
    if skipped := result.get("goodput", {}).get("skipped_updates"):
        yield "skipped", f"{skipped:,} of {result['steps']:,} updates, as gradients overflowed"
    yield "parameters", f"{result['parameters']:,}"
    yield "weights", f"equal on all workers ({result['weights']['sha256'][:12]})"


def _restarts(goodput: dict[str, Any]) -> str:
    lost, share = goodput["lost_steps"], goodput["share"]
    return f"{len(goodput['restarts'])}, {lost} steps were trained again; {share:.0%} of all time trained these weights"


def _step_shares(seconds: dict[str, Any]) -> str:
    total = sum(seconds[part] for part in STEP)
    if not total:
        return "no step was trained"
    inner = [f"{name} {seconds[name] / total:.0%}" for name in ("forward", "backward", "optimizer") if name in seconds]
    compute = f" ({', '.join(inner)})" if inner else ""
    shares = [f"{part} {seconds[part] / total:.0%}{compute if part == 'compute' else ''}" for part in STEP]
    return ", ".join(shares)


def _slow(straggler: dict[str, Any]) -> str:
    host = f" on {straggler['host']}" if straggler["host"] else ""
    who = "the network" if straggler["rank"] is None else f"rank {straggler['rank']}{host}"
    by = f", slower by {straggler['slower_by']:.0%}" if straggler["slower_by"] else ""
    waited = f"others waited {straggler['share_of_time_others_waited']:.0%} of their time"
    return f"{who}: {straggler['cause']}{by}; {waited}"
