"""The notebooks of examples/ run from the first cell to the last, and show what they promise."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.processes import Spawned, environment
from support.runs import result_of

ROOT = Path(__file__).parents[2]
SCRIPT = str(ROOT / "tests" / "support" / "scripts" / "execute_notebook.py")
DEADLINE_S = 240


def executed(name: str, folder: Path) -> dict[str, Any]:
    """The notebook with the outputs of its cells; nothing that it started is left."""
    argv = [sys.executable, SCRIPT, str(ROOT / "examples" / "notebooks" / name), "executed.ipynb", "120"]
    with Spawned(argv, environment(), folder) as spawned:
        done = spawned.wait(DEADLINE_S)
        spawned.require_gone()
    assert done.returncode == 0, done.tail()
    return dict(json.loads((folder / "executed.ipynb").read_text()))


def shown(notebook: dict[str, Any], kind: str) -> list[str]:
    """What cells show of one MIME type; "stdout" and "stderr": what they print."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    found = [output["data"][kind] for output in outputs if kind in output.get("data", {})]
    found += [output["text"] for output in outputs if output.get("name") == kind]
    return ["".join(lines) for lines in found]


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path: Path) -> None:
    cells = json.loads(path.read_text())["cells"]
    assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []


def test_a_class_of_a_cell_is_trained_by_two_workers_which_print_into_the_cell(tmp_path: Path) -> None:
    notebook = executed("train_torch.ipynb", tmp_path)
    assert ", 2 workers by hvdtrain launch on 1 node" in "".join(shown(notebook, "stdout"))
    assert "epoch 4/4" in "".join(shown(notebook, "stderr"))
    assert len(shown(notebook, "image/png")) == 1
    (page,) = shown(notebook, "text/html")
    assert page.startswith("<iframe srcdoc=")
    result = result_of(tmp_path / "digits")
    assert result["status"] == "finished"
    assert result["metrics"]["accuracy"] > 0.8


def test_a_function_of_a_cell_fits_a_keras_model_on_two_workers(tmp_path: Path) -> None:
    notebook = executed("run_keras.ipynb", tmp_path)
    first, second = json.loads(shown(notebook, "text/plain")[0])
    assert first == second > 0.8
    assert len(shown(notebook, "image/png")) == 1
