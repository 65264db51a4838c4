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
    missing = [path for path in paths_in(text) if not (ROOT / path).exists()]
    assert missing == []


def paths_in(page: str) -> list[str]:
    """Words of code, in sentences and in commands, that begin with a folder of the repository. Patterns are none."""
    blocks = r"^```(?:bash|sh|console)[^\n]*\n(.*?)^```"
    commands = "\n".join(re.findall(blocks, page, re.MULTILINE | re.DOTALL))
    sentences = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    code = "\n".join([commands, *re.findall(r"`([^`\n]+)`", sentences)])
    words = re.findall(rf"(?<!\S)(?:{'|'.join(_PACKAGES)})/\S+", code)
    paths = [word.partition("::")[0].rstrip(".,;") for word in words]
    return [path for path in paths if re.fullmatch(r"[\w/.-]+", path)]


def test_paths_are_found_in_sentences_and_in_commands() -> None:
    page = "`tests/a.py` and `pytest tests/b.py -k c`\n```bash\npython docs/d.py tests/e.py::test_f data/*.g\n```\n"
    assert sorted(paths_in(page)) == ["docs/d.py", "tests/a.py", "tests/b.py", "tests/e.py"]


@pytest.mark.parametrize("page", PAGES)
def test_every_link_to_a_file_leads_to_one(page: str) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    links = re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", text)
    missing = [link for link in links if not ((ROOT / page).parent / link).exists()]
    assert missing == []
