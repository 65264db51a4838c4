"""What differs between runs, in options and in outcome."""

from collections.abc import Iterator, Sequence
from typing import Final

from hvdtrain.history.comparison import Comparison, compare
from hvdtrain.history.differences import MISSING, Difference
from hvdtrain.report import palette, wording
from hvdtrain.report.axes import swatch
from hvdtrain.report.markup import Markup, Part, bullets, join, table, tag
from hvdtrain.report.record import RunRecord
from hvdtrain.report.sections import outcome
from hvdtrain.report.sections.setup import cell

_MOST: Final = 500  # rows of a table


def runs_list(runs: Sequence[RunRecord]) -> Markup:
    """The runs with their letters, lines and outcomes."""
    items = [
        tag(
            "li",
            tag("strong", swatch(palette.colour(number), palette.dashes(number)), run.short),
            tag("span", f"{run.what}. {outcome.sentence(run)}"),
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
    unknown = [run.short for run in runs if not run.facts.config]
    return join(
        bullets(_same(comparison), class_="findings"),
        tag("p", f"The options of {wording.listed(unknown)} are not known.") if unknown else None,
        tag("h3", "Options"),
        _table("Options that differ", columns, comparison.config) or tag("p", "The options are the same."),
        tag("h3", "Versions and machines"),
        _table("Versions and machines that differ", columns, comparison.environment) or tag("p", "They are the same."),
    )


def _same(comparison: Comparison) -> Iterator[str]:
    same = {True: "the same", False: "different", None: "not known"}
    yield f"Final weights: {same[comparison.same_weights]}."
    yield f"Training data: {same[comparison.same_data]}."
    yield f"Records of each update: {same[comparison.same_batches]}."


def _table(caption: str, columns: Sequence[str], rows: Sequence[Difference]) -> Markup | None:
    cells = [[row.key, *(wording.NOTHING if v is MISSING else cell(v) for v in row.values)] for row in rows[:_MOST]]
    return table(caption, columns, cells, numbers=False) if cells else None
