"""The Markdown of the site: pages of docs/ and whatever they link to in the repository, with links that fit.

A page stays readable in the repository: its links are those between files there. `docs/PAGE.md` becomes PAGE.md of the
site, any other file `repository/FILE`, in which source code is shown as a page.
"""

from __future__ import annotations

import posixpath
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

_FENCE = re.compile(r"^ {0,4}(```|~~~)", re.MULTILINE)
_TARGET = re.compile(r"(\]\()([^)\s]+)")
_CODE = {".py": "python", ".sh": "bash", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".conf": "ini", "": "text"}
_CODE |= {".sbatch": "bash", ".patch": "diff", ".txt": "text", ".csv": "text", ".css": "css"}
_WITHOUT_CONTENTS = "---\nhide: [toc]\n---\n\n"
"""What is wide needs the place of the page's table of contents."""
_COLUMNS = '<div class="side-by-side"'
_MANY_COLUMNS, _LONG_LINE = 4, 100
_AS_IT_IS = (".svg", ".png", ".json", ".jpg")


class Staging:
    """Copies pages into `target`.

    Attributes:
        faults: links to files that are not there, one sentence each.
        written: the pages, as paths in the site.
    """

    def __init__(self, root: Path, target: Path) -> None:
        self._root, self._target = root, target
        self._generated: set[str] = set()
        self._waiting: list[str] = []
        self._seen: set[str] = set()
        self.faults: list[str] = []
        self.written: list[str] = []

    def add_generated(self, pages: Mapping[str, str]) -> None:
        """Pages that no file has, by their path in the site."""
        self._generated |= {f"docs/{path}" for path in pages}
        for path, text in pages.items():
            self._write(path, text)

    def add_pages(self, pages: Mapping[str, str]) -> None:
        """Pages of the repository, by their path there, and all that they lead to."""
        self._seen |= set(pages)
        for path, text in pages.items():
            self._write(_place(path), self._with_links(path, text))
        while self._waiting:
            self._add(self._waiting.pop())

    def _add(self, path: str) -> None:
        source, place = self._root / path, _place(path)
        if source.is_dir():
            names = sorted(each.name + "/" * each.is_dir() for each in source.iterdir() if each.name[0] not in "._")
            self._write(place, f"# {path}\n\n" + "".join(f"- `{name}`\n" for name in names))
        elif source.suffix == ".md":
            self._write(place, self._with_links(path, source.read_text(encoding="utf-8")))
        elif source.suffix in _AS_IT_IS:
            (self._target / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, self._target / place)
        else:
            language = _CODE.get(source.suffix, "text")
            text = source.read_text(encoding="utf-8").rstrip()
            self._write(place, f"# {source.name}\n\n`{path}`\n\n````{language}\n{text}\n````\n")

    def _write(self, place: str, text: str) -> None:
        file = self._target / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        self.written.append(place)

    def _with_links(self, path: str, text: str) -> str:
        parts, inside = [_WITHOUT_CONTENTS if _is_wide(text) else ""], False
        for line in text.splitlines(keepends=True):
            if _FENCE.match(line):
                inside = not inside
            parts.append(line if inside else _TARGET.sub(lambda found: found[1] + self._link(path, found[2]), line))
        return "".join(parts)

    def _link(self, path: str, link: str) -> str:
        if re.match(r"[a-z]+:|#|<", link):
            return link
        name, _, anchor = link.partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
        if target in self._generated:
            pass
        elif target.startswith("..") or not (self._root / target).exists():
            self.faults.append(f"{path}: the link {link} leads to no file.")
            return link
        elif (self._root / target / "README.md").is_file():
            target += "/README.md"
        if target not in self._seen and target not in self._generated:
            self._seen.add(target)
            self._waiting.append(target)
        there = posixpath.relpath(_place(target), posixpath.dirname(_place(path)))
        return f"{there}#{anchor}" if anchor else there


def _is_wide(text: str) -> bool:
    """Whether a page has code in two columns, a wide diagram, or a table of many columns with much in them."""
    long_lines = [line for line in text.splitlines() if len(line) > _LONG_LINE]
    diagrams = [block for block in re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL) if "│" in block]
    return (
        _COLUMNS in text
        or any(line in diagram for diagram in diagrams for line in long_lines)
        or any(len(re.findall(r"(?<!\\)\|", row)) > _MANY_COLUMNS for row in long_lines if row.startswith("|"))
    )


def _place(path: str) -> str:
    """Where a file of the repository is in the site."""
    inside = path.removeprefix("docs/") if path.startswith("docs/") else f"repository/{path}"
    return inside if path.endswith((".md", *_AS_IT_IS)) else f"{inside}.md"
