"""Rules that every page keeps: a title, finished, not too long; and that the run folder's page has all of its files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

MOST_WORDS = 1800
"""Of a page that is read from top to bottom; pages of reference are looked up."""
FEWEST_WORDS = 30
_UNFINISHED = re.compile(r"\b(?:to be filled|TODO|TBD)\b", re.IGNORECASE)


def faults_of_pages(root: Path) -> list[str]:
    """What is wrong with pages of docs/, one sentence each."""
    found = []
    for file in sorted((root / "docs").rglob("*.md")):
        page, text = file.relative_to(root).as_posix(), file.read_text(encoding="utf-8")
        found += [f"{page}: {fault}" for fault in faults_of_page(text, is_reference="reference" in file.parts)]
    return found + _files_without_a_row(root)


def faults_of_page(text: str, *, is_reference: bool) -> Iterator[str]:
    """What is wrong with one page."""
    titles = re.findall(r"^# .+", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    if len(titles) != 1 or not text.startswith("# "):
        yield "a page begins with its title, and has one."
    words = len(text.split())
    if words > MOST_WORDS and not is_reference:
        yield f"{words} words; {MOST_WORDS} are what a reader takes at once."
    if words < FEWEST_WORDS:
        yield f"{words} words; a page has at least {FEWEST_WORDS}."
    if unfinished := _UNFINISHED.search(text):
        yield f'it says "{unfinished[0]}": finish it, or leave it out.'


def _files_without_a_row(root: Path) -> list[str]:
    """Files and folders of the class `RunFolder` that the page of the run folder does not name."""
    page = "docs/reference/run-folder.md"
    rows = " ".join(re.findall(r"^\| (`.*?) \|", (root / page).read_text(encoding="utf-8"), re.MULTILINE))
    named = {name.split("/")[0] for name in re.findall(r"`([^`]+)`", rows)}
    return [f"{page}: no row for {name}." for name in sorted(_run_folder_names(root) - named)]


def _run_folder_names(root: Path) -> set[str]:
    tree = ast.parse((root / "hvdtrain" / "run" / "run_folder.py").read_text(encoding="utf-8"))
    (folder,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "RunFolder")
    joined = [node.right for node in ast.walk(folder) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)]
    return {node.value for node in joined if isinstance(node, ast.Constant)}
