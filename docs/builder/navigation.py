"""Zensical's settings for one build: those of mkdocs.yml, with the pages of folders filled in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def write_settings(root: Path, source: Path) -> list[str]:
    """Write `source`/mkdocs.yml; returns what is wrong with the navigation, one sentence each.

    An entry such as `decisions/*.md` stands for all pages that match.
    """
    settings = yaml.safe_load((root / "mkdocs.yml").read_text(encoding="utf-8"))
    pages = source / "pages"
    settings["nav"] = _filled(settings["nav"], pages)
    settings |= {"docs_dir": "pages", "site_dir": "site"}
    for plugin in settings["plugins"]:
        if isinstance(plugin, dict) and "mkdocstrings" in plugin:
            plugin["mkdocstrings"]["handlers"]["python"]["paths"] = [str(root)]
    (source / "mkdocs.yml").write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    named = set(_leaves(settings["nav"]))
    missing = [name for name in sorted(named) if not (pages / name).is_file()]
    own = {path.relative_to(pages).as_posix() for path in pages.rglob("*.md")}
    lost = sorted(page for page in own - named if not page.startswith("repository/"))
    return [
        *(f"mkdocs.yml: the navigation names {name}, which is not there." for name in missing),
        *(f"{page} is not in the navigation of mkdocs.yml." for page in lost),
    ]


def _filled(nav: list[Any], pages: Path) -> list[Any]:
    filled: list[Any] = []
    for entry in nav:
        if isinstance(entry, str) and "*" in entry:
            filled += [_entry(path.relative_to(pages)) for path in sorted(pages.glob(entry))]
        elif isinstance(entry, dict):
            ((title, below),) = entry.items()
            filled.append({title: _filled(below, pages) if isinstance(below, list) else below})
        else:
            filled.append(entry)
    return [entry for entry in filled if not isinstance(entry, dict) or [*entry.values()] != [[]]]


def _entry(page: Path) -> str | dict[str, str]:
    """Pages of errors are called as what raises them."""
    is_room = page.parts[:2] == ("reference", "errors")
    return {page.stem.replace("-", "."): page.as_posix()} if is_room else page.as_posix()


def _leaves(nav: list[Any]) -> list[str]:
    found: list[str] = []
    for entry in nav:
        below = [*entry.values()][0] if isinstance(entry, dict) else entry
        found += _leaves(below) if isinstance(below, list) else [below]
    return found
