"""`hvdtrain top` on a terminal: it draws, follows the run, and ends at a key with the terminal as it was."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from support.run_folders import FakeRun

from hvdtrain.cli.top.screen import Look, picture
from hvdtrain.history.heartbeats import Heard, Heartbeat
from hvdtrain.history.metrics_end import MetricsEnd
from hvdtrain.history.run_state import RunState

DEADLINE = 60.0


def beat(rank: int, size: int, step: int = 40) -> Heartbeat:
    return Heartbeat(
        rank=rank,
        size=size,
        start="a",
        host="a-host-with-a-long-name",
        pid=1,
        time=time.time(),
        step=step,
        total_steps=99,
    )


def drawn(ranks: int, columns: int, lines: int | None) -> list[str]:
    """A picture of so many ranks, which wait in a collective with a long name."""
    heard = {}
    for rank in range(ranks):
        told = vars(beat(rank, ranks)) | {
            "host": f"a-host-with-a-long-name-{rank}",
            "waits_in": "hvdtrain.gradients." + "x" * 40,
        }
        heard[rank] = Heard(Heartbeat(**told), 1.0)
    console = Console(width=columns, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(picture(Look("run", RunState("running"), heard, MetricsEnd(), ranks), lines))
    console.file.close()
    return console.export_text().splitlines()


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("ranks", [1, 2, 30, 1000])
def test_a_picture_fits_its_terminal(columns: int, ranks: int) -> None:
    shown = drawn(ranks, columns, 24)
    assert len(shown) <= 24
    assert max(map(len, shown)) <= columns
    assert len([line for line in shown if "40" in line.split()]) >= min(ranks, 16)  # each rank in a line of its own
    assert (shown[-1] == f"… and {ranks - 16:,} more ranks, which are further and not silent") is (ranks > 16)
    assert len(drawn(ranks, columns, None)) >= ranks


def test_a_narrow_terminal_shows_fewer_columns_and_none_of_them_cut() -> None:
    heads = [line.split() for line in drawn(2, 40, 24) if line.startswith("rank")]
    assert heads == [["rank", "host", "state", "step"]]


class Terminal:
    """`hvdtrain top` on a terminal of 24 lines and 100 columns."""

    def __init__(self, run: Path, variables: dict[str, str]) -> None:
        self.far, near = os.openpty()
        termios.tcsetwinsize(near, (24, 100))
        self.before = termios.tcgetattr(near)
        self.near = near
        argv = [sys.executable, "-m", "hvdtrain", "top", str(run), "--interval", "0.1"]
        env = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(Path(__file__).parents[3]), **variables}
        self.process = subprocess.Popen(argv, stdin=near, stdout=near, stderr=near, env=env, start_new_session=True)
        self.shown = ""

    def wait_for(self, pattern: str) -> None:
        """Until what was drawn since the last call has the pattern."""
        end, self.shown = time.monotonic() + DEADLINE, ""
        while not re.search(pattern, self.shown, re.DOTALL):
            readable, _, _ = select.select([self.far], [], [], 0.2)
            self.shown += os.read(self.far, 65536).decode(errors="replace") if readable else ""
            assert time.monotonic() < end, self.shown

    def close(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE)
        os.close(self.far)
        os.close(self.near)


@pytest.fixture
def run(tmp_path: Path) -> FakeRun:
    return FakeRun.begun(tmp_path / "run").beats(beat(0, 2), beat(1, 2, step=41))


@pytest.fixture(params=[{}, {"NO_COLOR": "1"}])
def terminal(request: pytest.FixtureRequest, run: FakeRun) -> Iterator[Terminal]:
    opened = Terminal(run.folder, request.param)
    yield opened
    opened.close()


@pytest.mark.parametrize("end", ["q", signal.SIGINT])
def test_it_follows_the_run_and_ends_at_a_key(terminal: Terminal, run: FakeRun, end: str | signal.Signals) -> None:
    terminal.wait_for(r"2 ranks on a-host.*\b41\b")
    run.beats(beat(1, 2, step=58))
    terminal.wait_for(r"\b58\b")
    if isinstance(end, str):
        os.write(terminal.far, end.encode())
    else:
        terminal.process.send_signal(end)
    assert terminal.process.wait(DEADLINE) == 0
    terminal.wait_for(r"\x1b\[\?1049l.*\b58\b")  # back on the usual screen, which keeps the last picture
    assert termios.tcgetattr(terminal.near) == terminal.before
