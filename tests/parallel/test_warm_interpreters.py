"""A warm interpreter is to its launcher what a started one is; only imports are there already."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.process_table import is_alive
from support.processes import run_command, wait_until
from support.warm.interpreters import with_interpreter

DEADLINE_S = 60.0
TELL = """
import json, os, sys, threading
import neighbour
facts = {
    "argv": sys.argv, "cwd": os.getcwd(), "own": os.environ.get("OF_THIS_RUN"), "home": os.environ.get("HOME"),
    "from": neighbour.__file__, "name": __name__, "threads": threading.active_count(),
    "frameworks": sorted({"torch", "tensorflow", "mpi4py"} & {*sys.modules}),
}
print(json.dumps(facts))
print("and this to stderr", file=sys.stderr)
"""


@pytest.mark.parametrize("interpreter", ["fresh", "warm"])
@pytest.mark.parametrize("way", ["script", "module"])
def test_what_a_program_finds(interpreter: str, way: str, tmp_path: Path) -> None:
    code, elsewhere = tmp_path / "code", tmp_path / "elsewhere"
    code.mkdir()
    elsewhere.mkdir()
    (code / "tell.py").write_text(TELL)
    (code / "neighbour.py").write_text("")
    command = ["python", *([str(code / "tell.py")] if way == "script" else ["-m", "tell"]), "--flag", "a b"]
    env = {"OF_THIS_RUN": "é", **({"PYTHONPATH": str(code)} if way == "module" else {})}
    finished = run_command(command, DEADLINE_S, env, elsewhere, interpreter)
    assert finished.returncode == 0, finished.tail()
    assert finished.stderr == "and this to stderr\n"
    assert json.loads(finished.stdout) == {
        "argv": [str(code / "tell.py"), "--flag", "a b"],
        "cwd": str(elsewhere),
        "own": "é",
        "home": os.environ.get("HOME"),
        "from": str(code / "neighbour.py"),
        "name": "__main__",
        "threads": 1,
        "frameworks": ["torch"] if interpreter == "warm" else [],
    }


@pytest.mark.parametrize(
    ("lines", "code", "said"),
    [
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit('no')", 1, "no\n"),
        ("import os; os._exit(75)", 75, ""),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
        ("import os; os.kill(os.getpid(), 15)", -15, ""),
        ("import os; os.kill(os.getpid(), 11)", -11, ""),
        ("import atexit, sys; atexit.register(lambda: sys.stderr.write('last'))", 0, "last"),
    ],
)
@pytest.mark.parametrize("interpreter", ["fresh", "warm"])
def test_how_it_ends(interpreter: str, lines: str, code: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "end.py").write_text(lines)
    finished = run_command(["python", str(tmp_path / "end.py")], DEADLINE_S, interpreter=interpreter)
    assert (finished.returncode, finished.stderr) == (code, said)


def test_an_exception_has_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "end.py").write_text("def inside():\n    raise KeyError('what')\n\ninside()\n")
    finished = run_command(["python", str(tmp_path / "end.py")], DEADLINE_S)
    assert finished.returncode == 1
    assert f'File "{tmp_path / "end.py"}", line 2, in inside' in finished.stderr
    assert finished.stderr.endswith("KeyError: 'what'\n")


WAIT = """
import pathlib, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
def leave(*_):
    child.kill()
    sys.exit(7)
signal.signal(signal.SIGTERM, leave)
pathlib.Path(sys.argv[1]).write_text(str(child.pid))
time.sleep(300)
"""


@contextmanager
def waiting(command: list[str], tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The client of a program that waits, and a process that this has started."""
    (tmp_path / "wait.py").write_text(WAIT)
    client = subprocess.Popen([*command, str(tmp_path / "wait.py"), str(tmp_path / "ready")])
    try:
        wait_until(
            "a program that waits",
            lambda: (tmp_path / "ready").exists() and bool((tmp_path / "ready").read_text()),
            DEADLINE_S,
        )
        yield client, int((tmp_path / "ready").read_text())
    finally:
        client.kill()
        client.wait(10)


def test_signals_reach_it(tmp_path: Path) -> None:
    with waiting(with_interpreter(["python"]), tmp_path) as (client, child):
        client.send_signal(signal.SIGTERM)
        assert client.wait(DEADLINE_S) == 7
        wait_until("its end", lambda: not is_alive(child), DEADLINE_S)


def test_a_killed_client_leaves_nothing_behind(tmp_path: Path) -> None:
    with waiting(with_interpreter(["python"]), tmp_path) as (client, child):
        client.kill()
        wait_until("its end", lambda: not is_alive(child), DEADLINE_S)


OPENS = """
import gc, os
opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(40)]
gc.unfreeze()
gc.collect()
for number in opened:
    os.fstat(number)
"""


def test_what_it_opens_stays_open(tmp_path: Path) -> None:
    """Nothing of the server's is left that would close a number which is the child's by then; beside other clients."""
    (tmp_path / "opens.py").write_text(OPENS)
    command = ["python", "-W", "error", str(tmp_path / "opens.py")]
    with ThreadPoolExecutor() as threads:
        for finished in threads.map(lambda _: run_command(command, DEADLINE_S), range(4)):
            assert (finished.returncode, finished.stderr) == (0, ""), finished.tail()
