"""Rules that every page keeps: one title, a first paragraph that says what it is for, and not too many words."""

from __future__ import annotations

import re
from pathlib import Path

MOST_WORDS = 1800
"""Of a page that is read from top to bottom; pages of reference are looked up."""


def faults_of_pages(root: Path) -> list[str]:
    """What is wrong with pages of docs/, one sentence each."""
    found = []
    for file in sorted((root / "docs").rglob("*.md")):
        page, text = file.relative_to(root).as_posix(), file.read_text(encoding="utf-8")
        titles = re.findall(r"^# .+", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
        if len(titles) != 1 or not text.startswith("# "):
            found.append(f"{page}: a page begins with its title, and has one.")
        words = len(text.split())
        if words > MOST_WORDS and "reference" not in file.parts:
            found.append(f"{page}: {words} words; {MOST_WORDS} are what a reader takes at once.")
    return found
