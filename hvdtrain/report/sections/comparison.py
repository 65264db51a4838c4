"""What differs between runs, in options and in outcome."""

from collections.abc import Sequence

from hvdtrain.report import palette, wording
from hvdtrain.report.axes import swatch
from hvdtrain.report.markup import Markup, Part, join, table, tag
from hvdtrain.report.record import RunRecord
from hvdtrain.report.sections import outcome
from hvdtrain.report.sections.setup import cell, flat

_NOT_COMPARED = ("output_dir", "resume")  # which say where a run is, not what it does


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
    facts = [dict(outcome.facts(run)) for run in runs]
    names = list(dict.fromkeys(name for each in facts for name in each))
    rows: list[Sequence[Part]] = [[name, *(each.get(name, wording.NOTHING) for each in facts)] for name in names]
    return table("Outcome", ("", *(run.short for run in runs)), rows)


def options(runs: Sequence[RunRecord]) -> Markup:
    """A table of those options and versions that differ."""
    every = [_asked(run) for run in runs]
    names = dict.fromkeys(name for each in every for name in each)
    differing = [name for name in names if len({cell(each.get(name)) for each in every}) > 1]
    unknown = [run.short for run in runs if not run.facts.config]
    note = tag("p", f"The options of {wording.listed(unknown)} are not known.") if unknown else None
    if not differing:
        return join(note, tag("p", "The runs have the same options, versions and numbers of workers."))
    rows: list[Sequence[Part]] = [[name, *(cell(each.get(name)) for each in every)] for name in differing]
    return join(note, table("Differences", ("", *(run.short for run in runs)), rows, numbers=False))


def _asked(run: RunRecord) -> dict[str, object]:
    config = {name: value for name, value in flat(run.facts.config).items() if name not in _NOT_COMPARED}
    versions = flat({"version of": run.result.get("versions") or run.facts.environment.get("versions") or {}})
    return {"framework in use": run.result.get("framework"), "workers": run.workers, **config, **versions}
