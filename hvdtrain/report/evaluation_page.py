"""The page of an evaluation: the measures of each set, the values of each class, the confusion matrix."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from hvdtrain.report import wording
from hvdtrain.report.markup import Markup, Part, join, table, tag
from hvdtrain.report.page import document

_MOST_COLUMNS: Final = 30
"""Of a matrix that is shown whole; of a larger one the most frequent mistakes are listed."""

_MOST_MISTAKES: Final = 100


def evaluation_page(content: Mapping[str, Any]) -> str:
    """A complete HTML document from what the evaluation's JSON file holds."""
    title = f"Evaluation of {content['run']}, step {content['step']}"
    averaged = ", with averaged weights" if content["averaged_weights"] else ""
    by = wording.plural(content["workers"], "worker")
    lead = f"Task {content['task']} in {content['framework']}, by {by}{averaged}."
    header = tag("header", tag("p", "Evaluation by hvdtrain", class_="kicker"), tag("h1", title), tag("p", lead))
    sets = content["sets"]
    of_sets = [tag("section", tag("h2", name), join(_of_classes(name, found))) for name, found in sets.items()]
    return document(title, header, tag("main", tag("section", tag("h2", "Measures"), _measures(sets)), of_sets))


def _measures(sets: Mapping[str, Any]) -> Markup:
    names = list(dict.fromkeys(name for found in sets.values() for name in found["measures"]))
    rows = [
        [name, f"{found['records']:,}", f"{found['left_out']:,}", *(_number(found["measures"].get(m)) for m in names)]
        for name, found in sets.items()
    ]
    return table("Means over all records of each set", ["set", "records", "left out", *names], rows)


def _of_classes(name: str, found: Mapping[str, Any]) -> Iterator[Part]:
    if "confusion" not in found:
        yield tag("p", "The task names no labels, so that there is no confusion matrix.")
        return
    columns = ("class", "precision", "recall", "F1", "support")
    rows = [
        [str(number), *(f"{values[key]:.4f}" for key in ("precision", "recall", "f1")), f"{values['support']:,}"]
        for number, values in enumerate(found["classes"])
    ]
    yield table(f"Classes of {name}", columns, rows, visible=True)
    counts = found["confusion"]
    yield _matrix(name, counts) if len(counts) <= _MOST_COLUMNS else _mistakes(name, counts)


def _matrix(name: str, counts: Sequence[Sequence[int]]) -> Markup:
    columns = ["true class", *(f"taken for {number}" for number in range(len(counts)))]
    rows = [[str(number), *map(str, row)] for number, row in enumerate(counts)]
    return table(f"Confusion matrix of {name}", columns, rows, visible=True)


def _mistakes(name: str, counts: Sequence[Sequence[int]]) -> Markup:
    found = [(n, i, j) for i, row in enumerate(counts) for j, n in enumerate(row) if n and i != j]
    rows = [[f"{i} taken for {j}", f"{n:,}"] for n, i, j in sorted(found, reverse=True)[:_MOST_MISTAKES]]
    return table(f"Most frequent mistakes of {name}", ["mistake", "records"], rows, visible=True)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.6g}"
