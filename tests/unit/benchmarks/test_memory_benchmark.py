"""The peak memory of every worker is found, however it ends."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.memory.__main__ import peak_bytes
from benchmarks.step.arms import Arm

HELD = 200 * 10**6
WORKER = f"""import os, sys
held = b"x" * {HELD}
print('{{"iterations": []}}', flush=True)
os._exit(int(os.environ.get("TEST_CODE", "0")))
"""


@pytest.fixture
def arm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Arm:
    (tmp_path / "memory_worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return Arm("no launcher", "a script", (), "", (sys.executable, "-m", "memory_worker"))


def test_a_worker_that_ends_at_once_leaves_its_figure(arm: Arm) -> None:
    assert HELD < peak_bytes(arm, 2, "mlp") < 2 * HELD


def test_a_worker_that_fails_gives_none(arm: Arm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_CODE", "3")
    with pytest.raises(RuntimeError, match="exit code 3"):
        peak_bytes(arm, 2, "mlp")
