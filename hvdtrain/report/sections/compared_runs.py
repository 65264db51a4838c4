"""What differs between runs, in options and in outcome."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from hvdtrain.history.comparison import MISSING, Comparison, Difference, compare
from hvdtrain.report import drawing, wording
from hvdtrain.report.drawing import swatch
from hvdtrain.report.markup import Markup, Part, bullets, join, table, tag
from hvdtrain.report.record import RunRecord
from hvdtrain.report.sections import outcome
from hvdtrain.report.sections.setup import cell

_MOST: Final = 500  # rows of a table


def runs_list(runs: Sequence[RunRecord]) -> Markup:
    """The runs with their letters, lines and outcomes."""
    names = [run.name for run in runs]
    items = [
        tag(
            "li",
            tag("strong", swatch(drawing.colour(number), drawing.dashes(number)), run.short),
            tag("span", f"{run.what}. {outcome.sentence(run)}"),
            tag("span", f"Folder: {run.path}") if names.count(run.name) > 1 else None,
        )
        for number, run in enumerate(runs)
    ]
    return tag("ul", items, class_="runs")


def outcomes(runs: Sequence[RunRecord]) -> Markup:
    """A table of all facts of all runs."""
    facts = [{"State": run.state.word, "Task": run.what, **dict(outcome.facts(run))} for run in runs]
    names = list(dict.fromkeys(name for each in facts for name in each))
    rows: list[Sequence[Part]] = [[name, *(each.get(name, wording.NOTHING) for each in facts)] for name in names]
    return table("Outcome", ("what", *(run.short for run in runs)), rows)


def differences(runs: Sequence[RunRecord]) -> Markup:
    """What was the same, and tables of the options and the machines that were not."""
    comparison = compare([run.path for run in runs])
    columns = ("what", *(run.short for run in runs))
    return join(
        bullets(_same(comparison), class_="findings"),
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


def _same(comparison: Comparison) -> Iterator[str]:
    same = {True: "the same", False: "different", None: "not known"}
    yield f"Final weights: {same[comparison.same_weights]}."
    yield f"Training data: {same[comparison.same_data]}."
    yield f"Records of each update: {same[comparison.same_batches]}."


def _table(caption: str, columns: Sequence[str], rows: Sequence[Difference] | None) -> Markup | None:
    shown = (rows or [])[:_MOST]
    cells = [[row.key, *(wording.NOTHING if v is MISSING else cell(v) for v in row.values)] for row in shown]
    return table(caption, columns, cells, numbers=False) if cells else None
