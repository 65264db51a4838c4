"""`hvdtrain shard verify`: prove from a run folder that each epoch used every record once, or as often as planned."""

from collections.abc import Sequence
from pathlib import Path

from hvdtrain.audit.audit_summary import CoverageReport, EpochCoverage, read_coverage
from hvdtrain.cli.command_parser import number
from hvdtrain.cli.shard.data_arguments import Parser
from hvdtrain.cli.tables import print_table
from hvdtrain.history.reading import mapping, whole
from hvdtrain.history.run_facts import read_result

_DESCRIPTION = """\
Prove from a run's audit that each epoch used every record once, through crashes, resumes and changes of world size.

  hvdtrain shard verify runs/digits-torch-20260101-120000

Exit code 0: every finished epoch used every record exactly once, and no epoch any record twice; of data that are mixed,
repeated or sampled, as often as planned. Otherwise 1, and the missing and repeated records are listed with file and
offset. 2: the audit is missing or damaged.
"""


def run(argv: Sequence[str]) -> int:
    """Verify the run that `argv` names; returns 0 if its coverage is exact, else 1."""
    parser = Parser("verify", _DESCRIPTION)
    parser.add_argument("run", metavar="RUN_DIR", type=Path, help="a run folder")
    parser.option("--limit", 20, "list at most this many records of each kind and epoch", type=number("--limit", 1))
    options = parser.parse(argv)
    report = read_coverage(options.run)
    read, repeated = ("read once", "twice") if report.catalog.draws is None else ("read as planned", "too often")
    print_table("", ["epoch", "steps", read, "left out", "missing", repeated, "workers", ""], _rows(report))
    for epoch in report.epochs:
        _name_faults(report, epoch, options.limit)
    for damage in report.catalog.damage:
        print(f"the data were indexed without what is damaged: {damage.reason}")
    if report.first_step:
        print(f"the ledger begins at step {report.first_step}: this run resumed another one, whose audit is not here")
    if report.unaccounted:
        print(f"the newest checkpoint has {report.unaccounted} updates that no line of the audit accounts for")
    if skipped := whole(mapping(read_result(options.run), "goodput"), "skipped_updates"):
        print(f"{skipped:,} updates did not change the weights, as gradients overflowed: their records count as used")
    print(_verdict(report))
    return 0 if report.exact else 1


def _verdict(report: CoverageReport) -> str:
    if not report.exact:
        return "NOT exact: see above"
    finished, records = sum(epoch.finished for epoch in report.epochs), f"{len(report.catalog):,} records"
    if not finished:
        return f"no epoch is finished yet; so far no record was used {_more_often(report)}"
    epochs = "the finished epoch" if finished == 1 else f"each of {finished} finished epochs"
    damaged = {record_id for epoch in report.epochs for record_id in epoch.damaged}
    left_out = f", but for {len(damaged):,} damaged ones that were left out" if damaged else ""
    how = "once" if report.catalog.draws is None else "as often as planned"
    return f"exact: {epochs} used every one of {records} {how}{left_out}"


def _more_often(report: CoverageReport) -> str:
    return "twice" if report.catalog.draws is None else "more often than planned"


def _rows(report: CoverageReport) -> list[list[str]]:
    return [
        [
            f"{epoch.number}",
            f"{epoch.steps}/{epoch.of_steps}",
            f"{epoch.used_once:,}",
            f"{len(epoch.damaged):,}",
            f"{len(epoch.missing):,}" if epoch.finished else "-",
            f"{len(epoch.too_often):,}",
            " → ".join(map(str, epoch.world_sizes)),
            epoch.verdict,
        ]
        for epoch in report.epochs
    ]


def _name_faults(report: CoverageReport, epoch: EpochCoverage, limit: int) -> None:
    for first, end in epoch.gaps:
        print(f"epoch {epoch.number}: nothing accounts for the steps from {first} up to {end}")
    kinds = [(_more_often(report), epoch.too_often.tolist()), ("left out as damaged", list(epoch.damaged))]
    if epoch.finished or epoch.gaps:
        kinds.append(("missing", epoch.missing.tolist()))
    for kind, ids in kinds:
        for record_id in ids[:limit]:
            print(f"epoch {epoch.number}: record {record_id} {kind}: {report.catalog.describe(record_id)}")
        if len(ids) > limit:
            print(f"epoch {epoch.number}: … and {len(ids) - limit:,} more {kind}; --limit shows more")
