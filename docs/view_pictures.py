"""Draw docs/images/{bar,ls,top,logs,compare}.svg from real trainings of two workers: python docs/view_pictures.py."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from run_picture import draw, run_in_terminal

COLUMNS, BAR_COLUMNS = 110, 190
TRAIN = [sys.executable, "-m", "hvdtrain", "launch", "local", "-np", "2", "--", "train", "--progress", "none"]
OPTIONS = {
    "calm": ["--epochs", "6", "--lr", "0.004"],
    "bold": ["--epochs", "6", "--lr", "0.02", "--precision", "bf16"],
    "gone": ["--epochs", "3000"],
    "long": ["--epochs", "3000"],
}


def train(folder: Path, name: str) -> subprocess.Popen[bytes]:
    """A training in runs/NAME, which has begun."""
    return subprocess.Popen([*TRAIN, *OPTIONS[name], "--output-dir", f"runs/{name}"], cwd=folder)


def view(folder: Path, picture: str, *argv: str, lines: slice = slice(50)) -> None:
    """Draw what a command shows, or some lines of it."""
    command = [sys.executable, "-m", "hvdtrain", *argv]
    written = run_in_terminal(command, COLUMNS, folder)
    draw("\n".join(written.rstrip().split("\n")[lines]), picture, " ".join(["hvdtrain", *argv]), COLUMNS)


def draw_bar(folder: Path) -> None:
    """Draw the begin of a training, with its bar as it is later on."""
    command = ["hvdtrain", "launch", "local", "-np", "2", "--", "train", "--epochs", "40"]
    written = run_in_terminal([sys.executable, "-m", *command], BAR_COLUMNS, folder)
    draw(written[: written.rindex("\r", 0, len(written) * 2 // 3)], "bar", " ".join(command), BAR_COLUMNS)


def await_steps(run: Path, steps: int) -> None:
    """Until the heartbeats tell that both workers have made so many steps."""
    beats = [run / "heartbeats" / f"rank_{rank}.json" for rank in range(2)]
    while not all(beat.exists() and json.loads(beat.read_text())["step"] >= steps for beat in beats):
        time.sleep(0.5)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        draw_bar(folder)
        for name in ("calm", "bold"):
            train(folder, name).wait()
        with train(folder, "gone") as gone:
            await_steps(folder / "runs" / "gone", 50)
            gone.kill()
        running = train(folder, "long")
        await_steps(folder / "runs" / "long", 500)
        view(folder, "top", "top", "--once", "runs/long")
        view(folder, "ls", "ls")
        running.terminate()
        running.wait()
        view(folder, "logs", "logs", "runs/calm", lines=slice(2, 12))
        view(folder, "compare", "compare", "runs/calm", "runs/bold")
