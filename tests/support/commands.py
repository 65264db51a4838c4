"""Run `hvdtrain` as users do: in processes of their own, with a deadline."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from support.processes import Spawned, python_path
from support.warm.interpreters import warm

_DEADLINE_SECONDS = 580
_TESTS = Path(__file__).parents[1]
_VARIABLES = {
    **dict.fromkeys(["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"], "1"),  # with one thread, no library starts others
    **{"CUDA_VISIBLE_DEVICES": "", "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"},
}


SCRIPTS = Path(__file__).parent / "scripts"


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
    """`python ARGV`: a script, `-m MODULE` or `-c PROGRAM`, and their arguments."""
    with Spawned([sys.executable, *argv], _environment(env or {}), cwd) as spawned:
        done = spawned.wait(_DEADLINE_SECONDS)
    return Ended(done.returncode, done.stdout, done.stderr)


class Forker:
    """Runs programs in forks of one process that has a framework already."""

    def __init__(self, framework: Literal["torch", "tensorflow"]) -> None:
        self._kind = f"{framework}-alone"

    def run(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None) -> Ended:
        """As the function `run`; `env` comes besides this process's variables."""
        return self.run_python(["-m", "hvdtrain", *argv], cwd, env)

    def run_python(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None) -> Ended:
        """As the function `run_python`."""
        return Ended(*warm(self._kind).run(argv, cwd, _environment(env or {}), _DEADLINE_SECONDS))

    def facts_of(self, script: str, cwd: Path) -> dict[str, Any]:
        """What a script of tests/support/scripts has found, by name: its last line, as JSON."""
        done = self.run_python([str(SCRIPTS / script)], cwd)
        assert done.code == 0, done
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    def run_tests(self, path: Path, cwd: Path, options: Sequence[str] = ()) -> None:
        """The tests in a file, none of which may fail or be skipped."""
        argv = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations", "5", *options, str(path)]
        ended = self.run_python(argv, cwd)
        assert ended.code == 0, ended.stdout + ended.stderr
        assert " passed" in ended.stdout
        assert "skipped" not in ended.stdout


def tree(folder: Path) -> dict[str, str]:
    """Each file's hash; log files, which every start opens, and bytecode left out."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    files = [path for path in files if path.parent.name not in ("logs", "__pycache__")]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _environment(added: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, **_VARIABLES, **python_path(_TESTS.parent, _TESTS), **added}
