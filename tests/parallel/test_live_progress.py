"""Whoever sits at a terminal sees progress while it is made, whatever stands between the terminal and the worker."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from support.ranks import launcher_argv
from support.terminal import watch_terminal

ENDLESS = ["--epochs", "100000", "--output-dir", "out"]
LOCAL = ["launch", "local", "-np", "2", "--", "train"]
COLUMNS = 72


@pytest.mark.parametrize("launcher", ["none", "local", "horovodrun-gloo", "horovodrun", "mpirun"])
def test_progress_is_live(launcher: Any, tmp_path: Path) -> None:
    """Of a run that would last for hours, so nothing waits for its end. Bars fit the terminal, with launchers' tags."""
    before = launcher_argv(launcher, 2) if launcher not in ("none", "local") else []
    argv = [*before, sys.executable, "-m", "hvdtrain", *(LOCAL if launcher == "local" else []), *ENDLESS]
    progress = r"epoch \d+/100000[^\r\n]* loss \d\.\d{4}[^\r\n]*[\r\n]"
    shown = watch_terminal(argv, progress, COLUMNS, deadline_s=120, cwd=tmp_path)
    redrawn = [piece for piece in re.split("[\r\n]+", shown) if re.search(r"\|.*\d/3000000", piece)]
    assert bool(redrawn) is (launcher not in ("horovodrun", "mpirun")), shown
    assert max(map(len, redrawn), default=0) < COLUMNS, redrawn
    if not redrawn:
        assert re.search(r"step \d+/3000000", shown), shown
