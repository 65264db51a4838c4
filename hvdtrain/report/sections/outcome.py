"""What a run came to, in one sentence and key numbers; and what differs between several, in outcome and in options."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from hvdtrain.history.comparison import MISSING, Difference, compare
from hvdtrain.history.curve import Curve
from hvdtrain.history.goodput import share_is_known
from hvdtrain.history.reading import mapping, number, text, whole
from hvdtrain.report import drawing, wording
from hvdtrain.report.drawing import swatch
from hvdtrain.report.markup import Markup, Part, bullets, join, table, tag
from hvdtrain.report.record import RunRecord
from hvdtrain.report.sections.setup import cell

_MOST: Final = 500  # rows of a table

Fact = tuple[str, str]
"""A name and a value."""


def sentence(run: RunRecord) -> str:
    """The outcome for people."""
    after = f"after {wording.plural(run.steps, 'update')}"
    on = f" on {wording.plural(run.workers, 'worker')}" if run.workers else ""
    took = f" in {wording.seconds(run.seconds)}" if run.seconds else ""
    note = run.state.note
    match run.state.word:
        case "finished":
            early = " It stopped early, as validation no longer improved." if run.result.get("stopped_early") else ""
            return f"Finished {after}{on}{took}.{early}"
        case "stopped":
            return f"Stopped {after}{on}{took}, before all was trained. {note[:1].upper()}{note[1:]}."
        case "failed":
            return f"Failed {after}{on}{took}: {note or 'nothing says why'}."
        case "running":
            return f"Running: {wording.plural(run.steps, 'update')} so far{on}{took}{f'; {note}' if note else ''}."
    return f"Interrupted {after}{on}{took}{f': {note}' if note else ''}."


def values(run: RunRecord) -> list[Fact]:
    """The last value of each measure, of validation where there was one."""
    last = {name: _last(curve) for name, curve in run.metrics.validation.items()}
    validation = [(f"Validation {name}", value) for name, value in last.items() if value]
    if validation:
        return validation
    metrics = mapping(run.result, "metrics")
    return [(wording.title_of(name), wording.amount(number(metrics, name))) for name in metrics]


def _last(curve: Curve) -> str:
    """Its last value; "" where it has none."""
    whole, missed = curve.whole(), curve.missed
    if missed is not None and (whole is None or missed.last > whole.last[0]):
        return "not finite"
    return wording.amount(whole.last[1]) if whole else ""


def costs(run: RunRecord) -> Iterator[Fact]:
    """How fast it was, and what it took."""
    speed = number(run.result, "samples_per_second")
    speed = run.metrics.mean_speed if speed is None else speed
    if speed is not None:
        yield "Samples per second", wording.amount(speed)
    if run.seconds is not None:
        yield "Time", wording.seconds(run.seconds)
    goodput = run.metrics.goodput.result()
    if share_is_known(goodput):
        yield "Share of time that counts", wording.share(goodput["share"])
    if goodput["restarts"]:
        yield "Restarts", wording.count(len(goodput["restarts"]))
        yield "Updates trained again", wording.count(goodput["lost_steps"])
    if goodput["skipped_updates"]:
        yield "Updates skipped", wording.count(goodput["skipped_updates"])


def sizes(run: RunRecord) -> Iterator[Fact]:
    """What was trained on what."""
    yield "Updates", wording.count(run.steps)
    for name, key in (("Epochs", "epochs"), ("Global batch", "global_batch_size"), ("Parameters", "parameters")):
        if (value := number(run.result, key)) is not None:
            yield name, wording.count(value)
    if run.workers:
        yield "Workers", wording.count(run.workers)


def best(run: RunRecord) -> list[Fact]:
    """The value and the step of the best checkpoint, if there is one."""
    best_values = mapping(run.result, "best")
    step, value = whole(best_values, "step"), number(best_values, "value")
    if step is None:
        return []
    return [(f"Best {text(best_values, 'metric')}", wording.amount(value)), ("Best at step", wording.count(step))]


def facts(run: RunRecord) -> list[Fact]:
    """All of it."""
    return [*values(run), *best(run), *costs(run), *sizes(run)]


def tiles(run: RunRecord) -> Markup:
    """The facts as a list of names and values."""
    return tag("dl", (tag("div", tag("dt", name), tag("dd", value)) for name, value in facts(run)), class_="tiles")


def equal_weights(run: RunRecord) -> Markup | None:
    """What the result says of the weights of all workers."""
    weights = mapping(run.result, "weights")
    digest = text(weights, "sha256")
    if not digest:
        return None
    equal = "The weights are equal on all workers" if weights.get("equal_on_all_ranks") is True else "The weights"
    return tag("p", f"{equal}; their SHA-256 begins with {digest[:16]}.")


def runs_list(runs: Sequence[RunRecord]) -> Markup:
    """The runs with their letters, lines and outcomes."""
    names = [run.name for run in runs]
    items = [
        tag(
            "li",
            tag("strong", swatch(drawing.colour(number), drawing.dashes(number)), run.short),
            tag("span", f"{run.what}. {sentence(run)}"),
            tag("span", f"Folder: {run.facts.path}") if names.count(run.name) > 1 else None,
        )
        for number, run in enumerate(runs)
    ]
    return tag("ul", items, class_="runs")


def outcomes(runs: Sequence[RunRecord]) -> Markup:
    """A table of all facts of all runs."""
    every = [{"State": run.state.word, "Task": run.what, **dict(facts(run))} for run in runs]
    names = list(dict.fromkeys(name for each in every for name in each))
    rows: list[Sequence[Part]] = [[name, *(each.get(name, wording.NOTHING) for each in every)] for name in names]
    return table("Outcome", ("what", *(run.short for run in runs)), rows)


def differences(runs: Sequence[RunRecord]) -> Markup:
    """What was the same, and tables of the options and the machines that were not."""
    comparison = compare([run.facts.path for run in runs])
    same = {True: "the same", False: "different", None: "not known"}
    findings = (
        f"Final weights: {same[comparison.same_weights]}.",
        f"Training data: {same[comparison.same_data]}.",
        f"Records of each update: {same[comparison.same_batches]}.",
    )
    columns = ("what", *(run.short for run in runs))
    return join(
        bullets(findings, class_="findings"),
        tag("h3", "Options"),
        _table("Options that differ", columns, comparison.config)
        or tag("p", _no_table(runs, comparison.config, "options", [run.facts.config for run in runs])),
        tag("h3", "Versions and machines"),
        _table("Versions and machines that differ", columns, comparison.environment)
        or tag("p", _no_table(runs, comparison.environment, "machines", [run.facts.environment for run in runs])),
    )


def _no_table(
    runs: Sequence[RunRecord], rows: Sequence[Difference] | None, what: str, values_by_run: Sequence[Mapping[str, Any]]
) -> str:
    if rows is not None:
        return f"The {what} are the same."
    unknown = [run.short for run, values in zip(runs, values_by_run, strict=True) if not values]
    return f"The {what} of {wording.listed(unknown)} are not known."


def _table(caption: str, columns: Sequence[str], rows: Sequence[Difference] | None) -> Markup | None:
    shown = (rows or [])[:_MOST]
    cells = [[row.key, *(wording.NOTHING if v is MISSING else cell(v) for v in row.values)] for row in shown]
    return table(caption, columns, cells, numbers=False) if cells else None
