"""The index of the examples has all of them, and its commands are among those that the tests run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INDEX = (ROOT / "examples" / "README.md").read_text()
ROWS = dict(re.findall(r"^\| [^|]+ \| \[(\S+\.py)\]\(\1\) \| (.+) \|$", INDEX, re.MULTILINE))
RUN_BY_A_TEST_OF_ITS_OWN = {
    "photos_torch.py": "tests/parallel/test_train_coverage.py",
    "cifar10_torch.py": "tests/parallel/test_train_coverage.py",
    "keras_fit.py": "tests/parallel/test_keras_fit.py",
    "records_jax.py": "tests/unit/test_examples.py",
}
"""The data of the first two is made by their test."""


def test_the_index_lists_every_script() -> None:
    assert sorted(ROWS) == sorted(path.name for path in (ROOT / "examples").glob("*.py"))


def test_commands_of_a_script_are_run_by_a_test() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "examples" / "README.md"]
    text = "\n".join(page.read_text() for page in pages)
    run = "\n".join(re.findall(r"<!-- tested: [\w ]+ -->\n```bash\n(.*?)```", text, re.DOTALL))
    untested = [name for name in ROWS if Path(name).stem not in run and name not in RUN_BY_A_TEST_OF_ITS_OWN]
    assert untested == []


@pytest.mark.parametrize("name", sorted(RUN_BY_A_TEST_OF_ITS_OWN))
def test_the_named_test_runs_the_script(name: str) -> None:
    assert Path(name).stem in (ROOT / RUN_BY_A_TEST_OF_ITS_OWN[name]).read_text()


def test_jax_goes_on_where_it_was(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    command = ["records_jax.py", str(tmp_path / "wine"), str(tmp_path / "state.json"), "7"]
    for script in (["wine_records.py", str(tmp_path / "wine")], command, command):
        run = subprocess.run(
            [sys.executable, *script], cwd=ROOT / "examples", capture_output=True, text=True, timeout=120, check=False
        )
        assert run.returncode == 0, run.stderr
    assert run.stdout == "stopped in epoch 2, step 3\n"
