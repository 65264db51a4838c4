"""The file of a page: written whole or not at all, and never over a file of somebody else."""

from collections.abc import Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Final

from hvdtrain.errors import UsageError
from hvdtrain.files import unwritable, write_atomically
from hvdtrain.history.lines import Progress
from hvdtrain.history.run_state import RunState
from hvdtrain.report import drawing
from hvdtrain.report.page import MARKER, page
from hvdtrain.report.record import RunRecord, read_record

NAME: Final = "report.html"


def read_runs(
    folders: Sequence[Path], state: RunState | None = None, progress: Progress | None = None
) -> list[RunRecord]:
    """Read all runs of a page.

    Args:
        state: of a single run, where the caller knows it better than its folder tells.
        progress: as in `read_record`.

    Raises:
        UsageError: a folder holds no run, is given twice, or there are more than a chart can show.
    """
    if len(folders) > drawing.MOST:
        raise UsageError(
            f"{len(folders)} runs were given.",
            f"More than {drawing.MOST} lines cannot be told apart in a chart.",
            "name fewer of them.",
        )
    real = [folder.resolve() for folder in folders]
    twice = [folder for number, folder in enumerate(folders) if folder.resolve() in real[:number]]
    if twice:
        raise UsageError(f"{twice[0]} is given twice.", "A run does not differ from itself.", "name each run once.")
    signs = [""] if len(folders) == 1 else ascii_uppercase
    return [read_record(folder, sign, state, progress) for folder, sign in zip(folders, signs, strict=False)]


def write_page(file: Path, runs: Sequence[RunRecord]) -> None:
    """Write the page of `runs` to `file`.

    Raises:
        UsageError: the file cannot be written, or holds something else than a page of ours.
    """
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
