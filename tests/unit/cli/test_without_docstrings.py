"""`python -OO`, which throws docstrings and assertions away: all commands say and do the same."""

from __future__ import annotations

import json
import re
from pathlib import Path

from support.commands import run_python

SCRIPT = str(Path(__file__).parents[2] / "support" / "scripts" / "help_pages.py")
ROOT = Path(__file__).parents[3]


def test_every_page_of_help_is_the_same(tmp_path: Path) -> None:
    usual, optimized = (json.loads(run_python([*flags, SCRIPT], tmp_path).stdout) for flags in ([], ["-OO"]))
    assert (usual["optimize"], optimized["optimize"]) == (0, 2)
    assert optimized["pages"] == usual["pages"]
    assert len(usual["pages"]) > 40
    assert [name for name, text in usual["pages"].items() if not text.endswith("\nexit code 0")] == []


def test_a_training_is_prepared(tmp_path: Path, digits_cache: Path) -> None:
    argv = ["-OO", "-m", "hvdtrain", "--dry-run", "--output-dir", "run"]
    done = run_python(argv, tmp_path, {"HVDTRAIN_CACHE_DIR": str(digits_cache)})
    assert done.code == 0, done
    assert "151,306 parameters" in done.stdout


def test_docstrings_are_never_read() -> None:
    """What uses them ends, or says nothing, where there are none."""
    users = {
        str(path.relative_to(ROOT))
        for package in ("hvdtrain", "data_sharding")
        for path in (ROOT / package).rglob("*.py")
        if re.search(r"__doc__|\bgetdoc\b|\bget_docstring\b", path.read_text())
    }
    assert users == set()
