"""The site builds without a fault, and what is wrong on a page is found: `make docs`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BUILDER = ROOT / "docs" / "builder"
SECONDS = 280


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, BUILDER, "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(autouse=True)
def builder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BUILDER)


def test_the_reference_has_what_the_code_has(site: Path) -> None:
    assert "--global-batch-size" in (site / "reference" / "options.html").read_text()
    assert "hvdtrain checkpoint prune" in (site / "reference" / "commands.html").read_text()
    api = (site / "reference" / "python-api.html").read_text()
    assert all(f'id="{name}"' in api for name in ("hvdtrain.Task", "data_sharding.ShardPlan", "hvdtrain.keras.init"))
    assert "CheckpointDurable" in (site / "reference" / "events.html").read_text()
    assert "HVDTRAIN_CACHE_DIR" in (site / "reference" / "environment.html").read_text()


def test_errors_are_found_by_their_sentence(site: Path) -> None:
    searched = json.dumps(json.loads((site / "search.json").read_text()), ensure_ascii=False)
    assert "Another job is running in ‹path›" in searched
    assert "Two jobs in one folder would delete each other" in searched


def test_nothing_is_asked_of_other_servers(site: Path) -> None:
    for page in ("index.html", "reference/options.html", "start/first-run.html"):
        text = (site / page).read_text()
        assert 'src="http' not in text
        assert 'rel="stylesheet" href="http' not in text


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ("```python\nx = \n```", "this Python does not parse"),
        ("```yaml\na: [1\n```", "this YAML does not parse"),
        ("```bash\nhvdtrain --global-batch-sise 3\n```", "knows no --global-batch-sise"),
        ("```bash\nhorovodrun -np 2 python -m hvdtrain --lr 1 --nothing\n```", "knows no --nothing"),
        ("```bash\nhvdtrain launch local -np 2 --nothing -- train\n```", "knows no --nothing"),
        ("```bash\nhvdtrain launch local -np 2 -- train --max-restarts 2\n```", "knows no --max-restarts"),
        ("```console\n$ hvdtrain checkpoint prune RUN --keeep 2\n```", "knows no --keeep"),
        ("```bash\nhvdtrain prune RUN\n```", "knows no prune"),
        ("```bash\nhvdtrain launch slrum -np 2\n```", "knows no slrum"),
        ("```bash\nhvdtrain checkpoint prnue RUN\n```", "knows no prnue"),
        ("It says `hvdtrain ls --everything` then.", "knows no --everything"),
    ],
)
def test_what_is_wrong_in_a_block_is_found(block: str, said: str) -> None:
    from code_blocks import faults_of_text  # type: ignore[import-not-found]

    assert [fault for _, fault in faults_of_text(f"# Page\n\n{block}\n") if said in fault]


def test_pages_are_finished() -> None:
    from page_rules import faults_of_page  # type: ignore[import-not-found]

    whole = "# Page\n\n" + "word " * 50
    assert not list(faults_of_page(whole, is_reference=False))
    assert any("to be filled" in fault for fault in faults_of_page(f"{whole} (to be filled)", is_reference=False))
    assert any("at least" in fault for fault in faults_of_page("# Page\n\nSoon.\n", is_reference=True))


def test_what_is_right_in_a_block_is_not_found() -> None:
    from code_blocks import faults_of_text

    right = "hvdtrain --lr 1 --task-args.width 3\nhvdtrain bench step --num-iters 1 --precision bf16 | tee log\n"
    right += "docker run hvdtrain hvdtrain launch ssh -H a:1 \\\n    -- train --data.dir DIR && hvdtrain ls\n"
    assert list(faults_of_text(f"```bash\n{right}```\n")) == []


def test_links_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    from staging import Staging  # type: ignore[import-not-found]

    (tmp_path / "docs").mkdir()
    (tmp_path / "run.sh").write_text("echo\n")
    staging = Staging(tmp_path, tmp_path / "pages")
    staging.add_pages({"docs/page.md": "# Page\n\n[a](../run.sh) [b](other.md) [c](#here)\n\n```\n[d](x.md)\n```\n"})
    assert staging.faults == ["docs/page.md: the link other.md leads to no file."]
    assert "(repository/run.sh.md)" in (tmp_path / "pages" / "page.md").read_text()
    assert "```bash" in (tmp_path / "pages" / "repository" / "run.sh.md").read_text()


def test_parts_of_errors_are_read_from_the_source(tmp_path: Path) -> None:
    from error_sentences import errors_of  # type: ignore[import-not-found]

    (tmp_path / "own").mkdir()
    code = """
def f(path, hint):
    why = "It is full."
    raise UsageError(f"{path.name} is not written.", why, "make room" + hint)
"""
    (tmp_path / "own" / "module.py").write_text(code)
    (said,) = errors_of(tmp_path, ("own",))
    assert (said.fact, said.conflict, said.hint) == ("‹name› is not written.", "It is full.", "make room‹hint›")
    assert (said.kind, said.module) == ("UsageError", "own/module.py")
