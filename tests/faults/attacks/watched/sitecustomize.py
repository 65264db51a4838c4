"""Imported by every Python that has this folder on its path: notes each socket that it binds and each unpickled name.

Each line of the file WATCH_FOLDER/PROCESS is an event of sys.addaudithook, what it was about, and the files of the code
that did it, the innermost last, separated by tabs.
"""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any


def note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.bind":
        what = str(arguments[1])
    elif event == "pickle.find_class":
        what = f"{arguments[0]}.{arguments[1]}"
    else:
        return
    line = "\t".join([event, what, *files_of(sys._getframe(1))])
    with open(os.path.join(os.environ["WATCH_FOLDER"], str(os.getpid())), "a") as file:
        file.write(f"{line}\n")


def files_of(frame: FrameType | None) -> list[str]:
    found: list[str] = []
    while frame is not None:
        found.append(frame.f_code.co_filename)
        frame = frame.f_back
    return found[::-1]


sys.addaudithook(note)
