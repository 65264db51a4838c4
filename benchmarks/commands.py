"""Run a command that measures, and read the one line of JSON that it prints."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]


def printed_json(
    argv: Sequence[str], key: str, environ: Mapping[str, str], deadline_s: float, folder: Path = REPOSITORY
) -> dict[str, Any]:
    """The object with `key` in it that the command prints, in one line, from the repository's root or another folder.

    Raises:
        RuntimeError: the command failed, or printed no such line, or several.
        subprocess.TimeoutExpired: at the deadline.
    """
    done = subprocess.run(
        argv,
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=deadline_s,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if f'"{key}"' in line]
    if done.returncode != 0 or len(lines) != 1:
        raise RuntimeError(f"{' '.join(argv)}: exit code {done.returncode}\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(lines[0][lines[0].index("{") :])  # launchers may put the rank before it
    return found
