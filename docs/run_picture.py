"""Draw docs/images/run.svg from a real run in a pty: python docs/run_picture.py [COMMAND …]."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

IMAGES = Path(__file__).parent / "images"
COMMAND = ["make", "--no-print-directory", "train"]
COLUMNS = 132


def run_in_terminal(command: Sequence[str], columns: int = COLUMNS, cwd: Path | None = None) -> str:
    """Everything that the command writes to a terminal, stdout and stderr mixed."""
    reader, writer = pty.openpty()
    termios.tcsetwinsize(writer, (50, columns))
    process = subprocess.Popen(command, stdin=writer, stdout=writer, stderr=writer, cwd=cwd)
    os.close(writer)
    written = bytearray()
    while True:
        try:
            written += os.read(reader, 65536)
        except OSError:  # Linux's way to say that the last writer has closed the terminal
            break
    process.wait()
    os.close(reader)
    return written.decode()


def last_state(line: str) -> str:
    """What stays of a line that was redrawn by carriage returns; horovodrun writes its prefix only once."""
    drawn = [part for part in line.split("\r") if part.strip()]
    if len(drawn) < 2:
        return drawn[0] if drawn else ""
    prefix = drawn[0] if drawn[0].startswith("[") else ""
    return prefix + drawn[-1]


def draw(written: str, name: str, title: str, columns: int = COLUMNS) -> None:
    """Make docs/images/NAME.svg of what a command has written."""
    console = Console(record=True, width=columns, file=sys.stderr)
    for line in written.rstrip().split("\n"):
        console.print(Text.from_ansi(last_state(line)), soft_wrap=False)
    IMAGES.mkdir(exist_ok=True)
    console.save_svg(str(IMAGES / f"{name}.svg"), title=title)


if __name__ == "__main__":
    given = sys.argv[1:] or COMMAND
    draw(run_in_terminal(given), "run", " ".join(word for word in given if not word.startswith("-")))
