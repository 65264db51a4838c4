"""The layout that ARCHITECTURE.md describes is the one that is there, and no module imports itself through others."""

from __future__ import annotations

import graphlib
import re
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
_PACKAGES = ("hvdtrain", "launch", "data_sharding", "tests", "benchmarks", "docs", "docker", "examples")


def test_no_module_imports_itself_through_others() -> None:
    """Imports for type checkers are included, and so are those inside functions."""
    graph = grimp.build_graph("hvdtrain", "data_sharding", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    graphlib.TopologicalSorter(imports).prepare()


def test_the_check_finds_a_circle() -> None:
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter({"a": {"b"}, "b": {"a"}}).prepare()


PAGES = ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"] + sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("docs", "examples", "launch", "tests")
    for path in (ROOT / folder).rglob("*.md")
    if "node_modules" not in path.parts
)


@pytest.mark.parametrize("page", PAGES)
def test_every_path_that_a_page_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text()
    named = re.findall(rf"`((?:{'|'.join(_PACKAGES)})/[\w/.-]*)`", text)
    missing = [path for path in named if not (ROOT / path).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES)
def test_every_link_to_a_file_leads_to_one(page: str) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    links = re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", text)
    missing = [link for link in links if not ((ROOT / page).parent / link).exists()]
    assert missing == []
