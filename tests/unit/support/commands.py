"""Run `hvdtrain` as users do: in processes of their own, with a deadline."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_DEADLINE_SECONDS = 200
_FORKER = Path(__file__).parent / "forked_commands.py"


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str

    def require_refusal(self, *facts: str) -> None:
        """Exit code 2, three parts, no traceback."""
        assert self.code == 2, self
        assert "Traceback" not in self.stderr, self.stderr
        assert self.stderr.startswith("hvdtrain: "), self.stderr
        assert "\nHINT: " in self.stderr, self.stderr
        for fact in facts:
            assert fact in self.stderr, self.stderr


def run(argv: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None) -> Ended:
    """`python -m hvdtrain ARGV`."""
    return run_python(["-m", "hvdtrain", *argv], cwd, env)


def run_python(argv: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None) -> Ended:
    done = subprocess.run(
        [sys.executable, *argv],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=_environment(env or {}),
        timeout=_DEADLINE_SECONDS,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


class Forker:
    """Runs commands in forks of one process that has torch already. A context manager."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, str(_FORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=_environment({}),
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=30)

    def run(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> Ended:
        """`hvdtrain ARGV` in the folder `cwd`, with `env` besides this process's variables."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("the process was started without pipes")
        deadline = threading.Timer(_DEADLINE_SECONDS, self._process.kill)
        deadline.start()
        try:
            stdin.write(json.dumps({"argv": list(argv), "cwd": str(cwd), "env": dict(env)}) + "\n")
            stdin.flush()
            return Ended(*json.loads(stdout.readline()))
        finally:
            deadline.cancel()


def tree(folder: Path) -> dict[str, str]:
    """Each file's hash; log files, which every start opens, left out."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.parent.name != "logs"]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _environment(added: Mapping[str, str]) -> dict[str, str]:
    root = str(Path(__file__).parents[3])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", **added}
