"""The data: which records there are, how they were dealt out, and the proof of which were used."""

from collections.abc import Iterator

from hvdtrain.audit.audit_summary import CoverageReport, EpochCoverage
from hvdtrain.history.reading import mapping, number, text, whole
from hvdtrain.report import wording
from hvdtrain.report.markup import Markup, bullets, details, join, table
from hvdtrain.report.record import RunRecord

_MOST_EPOCHS = 200


def section(run: RunRecord) -> Markup:
    """Of one run."""
    report = run.proof.report
    return join(bullets(sentences(run), class_="findings"), None if report is None else _epochs(report))


def sentences(run: RunRecord) -> Iterator[str]:
    """The plan and the verdict."""
    yield from _plan(run)
    report = run.proof.report
    if report is None:
        yield f"There is no proof of which records were used. {run.proof.reason}"
        return
    yield verdict(report)
    if report.first_step:
        yield (
            f"The account begins at update {wording.count(report.first_step)}: this run resumed another one, "
            "whose audit is not here."
        )
    if report.unaccounted:
        yield f"The newest checkpoint has {wording.plural(report.unaccounted, 'update')} that no line accounts for."


def verdict(report: CoverageReport) -> str:
    """Whether every record was used once."""
    if not report.exact:
        return "NOT exact: records are missing or were used twice; `hvdtrain shard verify` names them."
    finished = sum(epoch.finished for epoch in report.epochs)
    damaged = {record for epoch in report.epochs for record in epoch.damaged}
    but = f", but for {wording.count(len(damaged))} damaged ones that were left out" if damaged else ""
    if not finished:
        return f"No epoch is finished; so far no record was used twice{but}."
    epochs = "the finished epoch" if finished == 1 else f"each of {wording.count(finished)} finished epochs"
    return f"Proved: {epochs} used every one of {wording.count(len(report.catalog))} records once{but}."


def _plan(run: RunRecord) -> Iterator[str]:
    data, report = mapping(run.facts.config, "data"), run.proof.report
    batch, records = whole(run.result, "global_batch_size"), len(report.catalog) if report is not None else None
    parts = [
        f"{wording.plural(records, 'record')} for training" if records else "",
        f"a global batch of {wording.count(batch)}" if batch else "",
        f"{wording.count(report.epochs[0].of_steps)} updates an epoch" if report is not None and report.epochs else "",
        f"shuffle {text(data, 'shuffle')}" if text(data, "shuffle") else "",
        f"seed {wording.count(number(run.facts.config, 'seed'))}" if "seed" in run.facts.config else "",
    ]
    told = [part for part in parts if part]
    if told:
        yield f"Plan: {', '.join(told)}. Each update is made from the same records with any number of workers."
    if run.metrics.masked:
        yield f"{wording.plural(run.metrics.masked, 'damaged record')} were left out of training."


def _epochs(report: CoverageReport) -> Markup:
    columns = ("epoch", "updates", "used once", "left out", "missing", "twice", "workers", "verdict")
    rows = [_row(epoch) for epoch in report.epochs[-_MOST_EPOCHS:]]
    return details("Records used, by epoch", table("Records used, by epoch", columns, rows))


def _row(epoch: EpochCoverage) -> list[str]:
    audit, missing = epoch.audit, len(epoch.audit.missing())
    twice = len(audit.duplicates())
    used = audit.count if epoch.exact else audit.num_records - missing - len(epoch.damaged)
    state = ("exact" if epoch.finished else "not finished") if epoch.exact else "NOT EXACT"
    counts = [wording.count(n) for n in (used - twice, len(epoch.damaged))]
    workers = " → ".join(map(str, epoch.world_sizes))
    steps = f"{wording.count(epoch.steps)} of {wording.count(epoch.of_steps)}"
    shown_missing = wording.count(missing) if epoch.finished else wording.NOTHING
    return [str(epoch.epoch + 1), steps, *counts, shown_missing, wording.count(twice), workers, state]
