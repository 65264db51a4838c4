"""Draw docs/images/run.svg from a real run in a pty: python docs/run_picture.py [COMMAND …]."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

COMMAND = sys.argv[1:] or ["make", "--no-print-directory", "train"]
COLUMNS = 132


def run_in_terminal(command: list[str]) -> str:
    """Everything that the command writes to a terminal, stdout and stderr mixed."""
    reader, writer = pty.openpty()
    termios.tcsetwinsize(writer, (50, COLUMNS))
    process = subprocess.Popen(command, stdin=writer, stdout=writer, stderr=writer)
    os.close(writer)
    written = bytearray()
    while True:
        try:
            written += os.read(reader, 65536)
        except OSError:  # Linux's way to say that the last writer has closed the terminal
            break
    process.wait()
    return written.decode()


def last_state(line: str) -> str:
    """What stays of a line that was redrawn by carriage returns; horovodrun writes its prefix only once."""
    drawn = [part for part in line.split("\r") if part.strip()]
    if len(drawn) < 2:
        return drawn[0] if drawn else ""
    prefix = drawn[0] if drawn[0].startswith("[") else ""
    return prefix + drawn[-1]


lines = [last_state(line) for line in run_in_terminal(COMMAND).split("\n")]
console = Console(record=True, width=COLUMNS, file=sys.stderr)
for line in lines:
    console.print(Text.from_ansi(line), soft_wrap=False)
target = Path(__file__).parent / "images" / "run.svg"
target.parent.mkdir(exist_ok=True)
console.save_svg(str(target), title=" ".join(word for word in COMMAND if not word.startswith("-")))
