"""What `support.processes` keeps of a command's output."""

from __future__ import annotations

import sys

from support.processes import run_command

LINES = 30000
WRITERS = f"""
import os
number = int(os.fork() == 0)
for _ in range({LINES}):
    os.write(1, b"line %d\\n" % number)
if not number:
    os.wait()
"""


def test_lines_of_processes_that_write_at_once_are_all_there() -> None:
    finished = run_command([sys.executable, "-c", WRITERS], 60)
    assert sorted(finished.stdout.splitlines()) == ["line 0"] * LINES + ["line 1"] * LINES
