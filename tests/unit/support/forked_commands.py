"""Runs command lines, each in a fork of this process, which has torch loaded: importing it again takes seconds.

Reads one JSON object a line: {"argv": [...], "cwd": FOLDER, "env": {...}}. Answers with one JSON line each:
[exit code, standard output, standard error]. Ends with its standard input.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any

import torch

from hvdtrain.cli import main


def in_a_fork(request: dict[str, Any]) -> tuple[int, str, str]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            run_child(request, out.fileno(), err.fileno())
        _, status = os.waitpid(child, 0)
        texts = [file.read().decode() for file in (out, err) if not file.seek(0)]
        return os.waitstatus_to_exitcode(status), texts[0], texts[1]


def run_child(request: dict[str, Any], out: int, err: int) -> None:
    code = 99
    try:
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.chdir(request["cwd"])
        os.environ.update(request["env"])
        code = main(request["argv"])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))]).step()  # loads what torch loads late
    for line in sys.stdin:
        sys.stdout.write(json.dumps(in_a_fork(json.loads(line))) + "\n")
        sys.stdout.flush()
