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
    epochs = None if isinstance(run.proof, str) else _epochs(run.proof)
    return join(bullets(sentences(run), class_="findings"), epochs)


def sentences(run: RunRecord) -> Iterator[str]:
    """The plan and the verdict."""
    yield from _plan(run)
    summary = run.proof
    if isinstance(summary, str):
        yield f"There is no proof of which records were used. {summary}"
        return
    yield verdict(summary)
    if run.metrics.skipped:
        skipped = wording.plural(run.metrics.skipped, "update")
        yield f"{skipped} did not change the weights, as gradients overflowed: their records count as used."
    if summary.first_step:
        yield (
            f"The account begins at update {wording.count(summary.first_step)}: this run resumed another one, "
            "whose audit is not here."
        )
    if summary.unaccounted:
        yield f"The newest checkpoint has {wording.plural(summary.unaccounted, 'update')} that no line accounts for."


def verdict(summary: CoverageReport) -> str:
    """Whether every record was used once."""
    if not summary.exact:
        return "NOT exact: records are missing or were used too often; `hvdtrain shard verify` names them."
    finished = sum(epoch.finished for epoch in summary.epochs)
    damaged = {record for epoch in summary.epochs for record in epoch.damaged}
    but = f", but for {wording.count(len(damaged))} damaged ones that were left out" if damaged else ""
    once = summary.catalog.draws is None
    if not finished:
        return f"No epoch is finished; so far no record was used {'twice' if once else 'more often than planned'}{but}."
    epochs = "the finished epoch" if finished == 1 else f"each of {wording.count(finished)} finished epochs"
    how = "once" if once else "as often as planned"
    return f"Proved: {epochs} used every one of {wording.count(len(summary.catalog))} records {how}{but}."


def _plan(run: RunRecord) -> Iterator[str]:
    data, summary = mapping(run.facts.config, "data"), None if isinstance(run.proof, str) else run.proof
    batch, records = whole(run.result, "global_batch_size"), len(summary.catalog) if summary is not None else None
    parts = [
        f"{wording.plural(records, 'record')} for training" if records else "",
        f"a global batch of {wording.count(batch)}" if batch else "",
        f"{wording.count(summary.epochs[0].of_steps)} updates an epoch"
        if summary is not None and summary.epochs
        else "",
        f"shuffle {text(data, 'shuffle')}" if text(data, "shuffle") else "",
        f"seed {wording.count(number(run.facts.config, 'seed'))}" if "seed" in run.facts.config else "",
    ]
    known = [part for part in parts if part]
    if known:
        yield f"Plan: {', '.join(known)}. Each update is made from the same records with any number of workers."
    if run.metrics.masked:
        yield f"{wording.plural(run.metrics.masked, 'damaged record')} were left out of training."


def _epochs(summary: CoverageReport) -> Markup:
    used, repeated = ("used once", "twice") if summary.catalog.draws is None else ("used as planned", "too often")
    columns = ("epoch", "updates", used, "left out", "missing", repeated, "workers", "verdict")
    rows = [_row(epoch) for epoch in summary.epochs[-_MOST_EPOCHS:]]
    return details("Records used, by epoch", table("Records used, by epoch", columns, rows))


def _row(epoch: EpochCoverage) -> list[str]:
    steps = f"{wording.count(epoch.steps)} of {wording.count(epoch.of_steps)}"
    counts = [wording.count(n) for n in (epoch.used_once, len(epoch.damaged))]
    missing = wording.count(len(epoch.missing)) if epoch.finished else wording.NOTHING
    twice, workers = wording.count(len(epoch.too_often)), " → ".join(map(str, epoch.world_sizes))
    return [str(epoch.number), steps, *counts, missing, twice, workers, epoch.verdict]
