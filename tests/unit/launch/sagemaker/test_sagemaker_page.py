"""What docs/sagemaker.md shows as a dry run gives a request that SageMaker's service model accepts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hvdtrain.launch.sagemaker.request_checks import require_valid_request

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "sagemaker.md").read_text()
BLOCKS = {
    language: re.findall(rf"<!-- dry run -->\n```{language}\n(.*?)```", PAGE, re.DOTALL)
    for language in ("bash", "python")
}


def test_the_command_that_is_shown(tmp_path: Path) -> None:
    (block,) = BLOCKS["bash"]
    _make_source(tmp_path)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", block],
        cwd=tmp_path,
        env={"PATH": path, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    request = json.loads(done.stdout)
    assert require_valid_request(request)
    assert request["ResourceConfig"]["InstanceCount"] == 2


def _make_source(folder: Path) -> None:
    (folder / "src").mkdir()
    shutil.copy(ROOT / "examples" / "wine_torch.py", folder / "src")


def test_the_python_that_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = BLOCKS["python"]
    _make_source(tmp_path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(block, "docs/sagemaker.md", "exec"), names)
    assert require_valid_request(names["request"])
    pipes = [each for each in names["request"]["InputDataConfig"] if each["ChannelName"].startswith("train-")]
    assert len(pipes) == names["estimator"].spec.processes_per_host
