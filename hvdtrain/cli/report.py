"""`hvdtrain report`: one page of one run, or of several beside each other."""

import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from hvdtrain.cli.command_parser import CommandParser
from hvdtrain.end_signals import ENDING, exiting_at
from hvdtrain.history.reading import size_of

_DESCRIPTION = """\
Write one HTML page, which needs no other file, no script and no network: curves, where the time went on each worker,
restarts and failures, the proof of which records were used, checkpoints, options, versions. For several runs, curves
are drawn in one chart, and tables show what differs. What cannot be read is named; the rest is shown."""


def run(argv: Sequence[str]) -> int:
    """Write the page of the runs that `argv` names; returns 0."""
    parser = CommandParser("hvdtrain report", "No report was written.", description=_DESCRIPTION)
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="run folders")
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        help="the file to write (default: report.html, in the folder of a single run, else here)",
    )
    options = parser.parse(argv)
    folders = options.runs
    size = sum(size_of(folder / "metrics.jsonl") for folder in folders)
    with exiting_at(ENDING, "no report was written"):
        from hvdtrain.report.page import NAME, read_runs, require_ours, write_page

        file = options.out or (folders[0] / NAME if len(folders) == 1 else Path(NAME))
        require_ours(file)
        bar = tqdm(total=size, unit="B", unit_scale=True, desc="reading metrics", delay=2, leave=False, disable=None)
        with bar:
            runs = read_runs(folders, progress=bar.update)
        write_page(file, runs)
    for record in runs:
        for problem in record.problems:
            print(f"hvdtrain report: {record.facts.path}: {problem}", file=sys.stderr)
    print(file)
    return 0
