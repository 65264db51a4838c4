"""The block of docs/sagemaker.md that trains on this machine, run as it stands."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

from support.processes import run_command
from support.runs import read_json

ROOT = Path(__file__).parents[2]
(BLOCK,) = re.findall(r"<!-- run -->\n```bash\n(.*?)```", (ROOT / "docs" / "sagemaker.md").read_text(), re.DOTALL)


def test_the_block_trains_by_files_and_by_pipes(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    shutil.copy(ROOT / "examples" / "wine_records.py", tmp_path)
    shutil.copy(ROOT / "examples" / "wine_torch.py", tmp_path / "src")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    finished = run_command(["bash", "-euc", BLOCK], 240, env={"PATH": path}, cwd=tmp_path)
    assert finished.returncode == 0, finished.tail()
    results = [read_json(path) for path in tmp_path.glob("runs/*/algo-1/output/data/result.json")]
    assert len(list(tmp_path.glob("runs/*/algo-*"))) == 1 + 2
    assert len(results) == 2
    for result in results:
        assert result["world_size"] == 2
        assert result["weights"]["equal_on_all_ranks"]
        assert result["metrics"]["accuracy"] >= 0.9
    models = [Path(line) for line in finished.stdout.splitlines() if line.endswith("/model")]
    assert len(models) == 2
    assert all(any(model.iterdir()) for model in models)
