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
from typing import Literal, Self

_DEADLINE_SECONDS = 580
_TESTS = Path(__file__).parents[1]
_FORKER = _TESTS / "support" / "forked_commands.py"
_VARIABLES = {
    **dict.fromkeys(["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"], "1"),  # with one thread, no library starts others
    **{"CUDA_VISIBLE_DEVICES": "", "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"},
}


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
    """Runs programs in forks of one process that has a framework already. A context manager."""

    def __init__(self, framework: Literal["torch", "tensorflow"]) -> None:
        self._framework = framework
        self._server: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.communicate(timeout=_DEADLINE_SECONDS)

    def run(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None) -> Ended:
        """`hvdtrain ARGV` in the folder `cwd`, with `env` besides this process's variables."""
        return self.run_python(["-m", "hvdtrain", *argv], cwd, env)

    def run_python(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None) -> Ended:
        """`python ARGV`: a script, `-m MODULE` or `-c PROGRAM`, and their arguments."""
        server = self._server = self._server or self._start()
        assert server.stdin is not None
        assert server.stdout is not None
        deadline = threading.Timer(_DEADLINE_SECONDS, server.kill)
        deadline.start()
        try:
            server.stdin.write(json.dumps({"argv": list(argv), "cwd": str(cwd), "env": dict(env or {})}) + "\n")
            server.stdin.flush()
            return Ended(*json.loads(server.stdout.readline()))
        except BaseException:  # a test's own deadline, perhaps: the next test must not be given this answer
            server.kill()
            server.communicate()
            self._server = None
            raise
        finally:
            deadline.cancel()

    def run_tests(self, path: Path, cwd: Path, options: Sequence[str] = ()) -> None:
        """The tests in a file, none of which may fail or be skipped."""
        argv = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations", "5", *options, str(path)]
        ended = self.run_python(argv, cwd)
        assert ended.code == 0, ended.stdout + ended.stderr
        assert " passed" in ended.stdout
        assert "skipped" not in ended.stdout

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(_FORKER), self._framework],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=_environment({}),
        )


def tree(folder: Path) -> dict[str, str]:
    """Each file's hash; log files, which every start opens, left out."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.parent.name != "logs"]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _environment(added: Mapping[str, str]) -> dict[str, str]:
    path = os.pathsep.join([str(_TESTS.parent), str(_TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, **_VARIABLES, "PYTHONPATH": path, **added}
