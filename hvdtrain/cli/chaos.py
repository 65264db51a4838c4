"""`hvdtrain chaos`: train while workers are killed, stopped and slowed down, and prove that nothing was lost."""

import math
import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import cast

from hvdtrain.chaos.drill import Drill, run_drill
from hvdtrain.chaos.faults import KINDS, Job, Kind, schedule
from hvdtrain.cli.command_parser import CommandParser, number
from hvdtrain.cli.tables import print_table
from hvdtrain.end_signals import ENDING, exiting_at
from hvdtrain.errors import UsageError, did_you_mean
from hvdtrain.files import write_json
from hvdtrain.units import seconds_of
from hvdtrain.version import versions

_DESCRIPTION = """\
Start a training with `hvdtrain launch local`, and disturb it on a seeded schedule until it has ended:

  hvdtrain chaos -np 2 -- train --epochs 20 --checkpoint-interval 10 --output-dir RUN
  hvdtrain chaos -np 3 --faults kill,corrupt --every 5 --for 10min --compare -- train --output-dir RUN

Faults: kill (SIGKILL of a worker or of a process that it has started), stop (SIGSTOP for some seconds), slow (a quarter
of the CPU for some seconds), term (SIGTERM to the launcher), corrupt (a byte of the newest checkpoint is changed, and a
worker is killed), full (rank 0 cannot write files for some seconds, as on a full disk). At the end it reports what the
faults have cost. Exit code 0: the job has ended well, each finished epoch used every record once, and with --compare
the weights are those of an undisturbed run. Otherwise 1, also if no fault came before the end.
"""


def run(argv: Sequence[str]) -> int:
    """Disturb what `argv` says; returns 0 if the job has survived, else 1."""
    words = list(argv)
    at = words.index("--") if "--" in words else len(words)
    options = _parser().parse(words[:at])
    command = words[at + 1 :] or ["train"]
    kinds = _kinds(options.faults)
    job = Job(options.np, options.max_restarts, command, options.min_workers)
    folder = job.folder.resolve()  # "." has no name
    beside = folder.with_name(f"{folder.name}-undisturbed")
    other = Job(options.np, 0, [*command, "--output-dir", str(beside)]) if options.compare else None
    _require_new(job.folder, *([beside] if options.compare else []))
    _require_writable(options.save)
    faults = islice(schedule(options.seed, kinds, options.np, seconds_of(options.every, "--every")), options.count)
    seconds = math.inf if options.duration is None else seconds_of(options.duration, "--for")
    with exiting_at(ENDING, "the job was ended"):
        drill = run_drill(job, faults, seconds, _say)
        calm = run_drill(other, iter(()), 0.0, _say) if other is not None and drill.survived else None
    same = calm is None or (calm.survived and calm.weights == drill.weights)
    print_table("", ["chaos", f"seed {options.seed}"], drill.rows(), numbers=False)
    if calm is not None:
        print(f"the weights are {'' if same else 'NOT '}those of an undisturbed run")
    if options.save is not None:
        write_json(Path(options.save), _record(argv, drill, calm))
    if not drill.done:
        print("no fault came before the job had ended, so nothing is proved: train longer, or give a shorter --every")
    return 0 if drill.done and drill.survived and same else 1


def _parser() -> CommandParser:
    parser = CommandParser("hvdtrain chaos", "Nothing was started.", description=_DESCRIPTION)
    parser.option("-np", 2, "workers", type=number("-np", 1))
    parser.option("--faults", "kill,stop,slow,term", "kinds of faults, separated by commas")
    parser.option("--every", "10s", "mean time between two faults", metavar="TIME")
    parser.option("--seed", 1, "seed of the schedule", type=int)
    parser.option("--max-restarts", 1000, "how often the job may be started again", type=number("--max-restarts", 0))
    parser.add_argument(
        "--min-workers",
        type=number("--min-workers", 1),
        help="let the others go on without a lost worker, if this many are left (default: all are started again)",
    )
    parser.add_argument("--for", dest="duration", metavar="TIME", help="no faults after this time (default: no limit)")
    parser.add_argument("--count", type=number("--count", 1), help="no more faults than this (default: no limit)")
    parser.add_argument("--compare", action="store_true", help="train once more, undisturbed, and compare the weights")
    parser.add_argument("--save", metavar="FILE", help="write what was done, and what came of it, as JSON")
    return parser


def _kinds(text: str) -> list[Kind]:
    kinds = [kind.strip() for kind in text.split(",") if kind.strip()]
    wrong = next((kind for kind in kinds if kind not in KINDS), None)
    if wrong is not None or not kinds:
        raise UsageError(
            f"There is no fault {wrong or text!r}.", "Nothing was started.", did_you_mean(wrong or "", KINDS)
        )
    return [cast(Kind, kind) for kind in kinds]


def _require_new(*folders: Path) -> None:
    for folder in folders:
        if folder.exists() and any(folder.iterdir()):
            raise UsageError(
                f"{folder} is already there.",
                "What an earlier run has left there would be taken for this one's.",
                "remove it, or give another --output-dir.",
            )


def _require_writable(file: str | None) -> None:
    if file is not None and not (Path(file).absolute().parent.is_dir() and not Path(file).is_dir()):
        raise UsageError(
            f"--save {file} cannot be written.", "What has come of the training would be lost.", "name another file."
        )


def _record(argv: Sequence[str], drill: Drill, calm: Drill | None) -> dict[str, object]:
    """What --save writes."""
    return {
        "command": shlex.join(["hvdtrain", "chaos", *argv]),
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "versions": versions(),
        "disturbed": asdict(drill),
        "undisturbed": None if calm is None else asdict(calm),
    }


def _say(done: str) -> None:
    sys.stderr.write(f"hvdtrain chaos: {done}\n")
    sys.stderr.flush()
