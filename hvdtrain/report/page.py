"""The whole page of one run, or of several beside each other; its file is never written over somebody else's."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Final

from hvdtrain.errors import UsageError
from hvdtrain.files import unwritable, write_atomically
from hvdtrain.history.reading import Progress
from hvdtrain.history.run_state import RunState
from hvdtrain.report.drawing import MOST, with_own_ids
from hvdtrain.report.markup import Markup, Part, bullets, details, join, tag
from hvdtrain.report.record import RunRecord, read_record
from hvdtrain.report.sections import curves, data, event_list, outcome, setup
from hvdtrain.report.sections import time as time_section
from hvdtrain.version import __version__

NAME: Final = "report.html"

MARKER: Final = "<!DOCTYPE html>\n<!-- hvdtrain report -->\n"
"""How each page begins: only a file with this begin is written over."""

FAILED: Final = "This could not be shown"
"""How the paragraph begins that takes the place of a section."""

_STYLE: Final = Path(__file__).with_name("page.css")

_Section = tuple[str, str, Callable[[], Part]]
"""An id, a heading, what makes the content."""


def read_runs(
    folders: Sequence[Path], state: RunState | None = None, progress: Progress | None = None
) -> list[RunRecord]:
    """Read all runs of a page, as `read_record` does. Raises UsageError: a folder holds no run, is given twice, or
    there are more than a chart can show."""
    if len(folders) > MOST:
        raise UsageError(
            f"{len(folders)} runs were given.",
            f"More than {MOST} lines cannot be told apart in a chart.",
            "name fewer of them.",
        )
    real = [folder.resolve() for folder in folders]
    twice = [folder for number, folder in enumerate(folders) if folder.resolve() in real[:number]]
    if twice:
        raise UsageError(f"{twice[0]} is given twice.", "A run does not differ from itself.", "name each run once.")
    signs = [""] if len(folders) == 1 else ascii_uppercase
    return [read_record(folder, sign, state, progress) for folder, sign in zip(folders, signs, strict=False)]


def write_page(file: Path, runs: Sequence[RunRecord]) -> None:
    """Write the page of `runs` to `file`. Raises UsageError: the file cannot be written, or holds something else than a
    page of ours."""
    require_ours(file)
    content = page(runs)
    try:
        write_atomically(file, content.encode(errors="replace"))
    except OSError as error:
        raise UsageError(
            f"The report {file} cannot be written: {error.strerror or error}.",
            "Nothing was changed.",
            "name another file with --out.",
        ) from error


def require_ours(file: Path) -> None:
    """Raise `UsageError` where `file` is there, and is not a page of ours."""
    try:
        if not file.exists():
            return
        if file.is_file():
            with file.open("rb") as content:
                if content.read(len(MARKER)) == MARKER.encode():
                    return
    except OSError as error:
        raise unwritable(file, error) from error
    raise UsageError(
        f"{file} is there, and is not a report of hvdtrain.", "It is not written over.", "name another file with --out."
    )


def page(runs: Sequence[RunRecord]) -> str:
    """A complete HTML document, which needs no other file."""
    sections = list(_of_one(runs[0]) if len(runs) == 1 else _of_several(runs))
    names = ", ".join(run.name for run in runs)
    title = f"{runs[0].what} – {names}" if len(runs) == 1 else f"{len(runs)} runs: {names}"
    links = [tag("li", tag("a", heading, href=f"#{name}")) for name, heading, _ in sections]
    made = [tag("section", tag("h2", heading), _made(make), id=name) for name, heading, make in sections]
    header = tag("header", _heading(runs), tag("nav", tag("ul", links), aria_label="Sections"))
    return document(title, header, with_own_ids(tag("main", _notice(runs), made)))


def document(title: str, header: Part, main: Part) -> str:
    """A complete HTML document of ours."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(_STYLE.read_text())),
    )
    footer = tag("footer", f"Made by hvdtrain {__version__} on {time.strftime('%Y-%m-%d %H:%M:%S %Z')}.")
    return f"{MARKER}{tag('html', head, tag('body', header, main, footer), lang='en')}\n"


def _heading(runs: Sequence[RunRecord]) -> Markup:
    if len(runs) > 1:
        kicker = tag("p", "Report by hvdtrain", class_="kicker")
        return join(kicker, tag("h1", f"{len(runs)} runs compared"), outcome.runs_list(runs))
    run = runs[0]
    return join(
        tag("p", f"Report by hvdtrain: {run.name}", class_="kicker"),
        tag("h1", run.what),
        tag("p", outcome.sentence(run), class_=f"lead {run.state.word}"),
        _made(lambda: outcome.tiles(run)),
    )


def _made(make: Callable[[], Part]) -> Markup:
    """What `make` returns. A file that nobody foresaw costs its own section, which says so."""
    try:
        return join(make())
    except Exception as error:
        return tag("p", f"{FAILED}: {type(error).__name__}: {error}")


def _notice(runs: Sequence[RunRecord]) -> Markup | None:
    """What could not be read, so that nobody takes its absence for a fact."""
    problems = [f"{run.short}: {problem}" if len(runs) > 1 else problem for run in runs for problem in run.problems]
    if not problems:
        return None
    return tag("div", tag("h2", "Not everything could be read"), bullets(problems), class_="notice")


def _of_one(run: RunRecord) -> Iterator[_Section]:
    yield "curves", "Curves", lambda: curves.section([run])
    yield "time", "Where the time went", lambda: time_section.section(run)
    yield "events", "Restarts, stops, failures", lambda: event_list.section(run)
    yield "data", "Data and proof", lambda: [data.section(run), outcome.equal_weights(run)]
    yield "checkpoints", "Checkpoints", lambda: event_list.checkpoints(run)
    yield "setup", "Options and versions", lambda: setup.section(run)


def _of_several(runs: Sequence[RunRecord]) -> Iterator[_Section]:
    yield "outcome", "Outcome", lambda: outcome.outcomes(runs)
    yield "curves", "Curves", lambda: curves.section(runs)
    yield "differences", "What differs", lambda: outcome.differences(runs)
    yield "runs", "Each run", lambda: [details(run.short, _inside(run), class_="run") for run in runs]


def _inside(run: RunRecord) -> Markup:
    parts = [*_of_one(run)][1:]  # its curves are drawn above
    return join((tag("h3", heading), _made(make)) for _, heading, make in parts)
