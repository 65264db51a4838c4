"""The reports of all ranks on one stall, in a folder that they share. They cannot talk: their collectives hang."""

import json
import os
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from hvdtrain.files import write_atomically, write_json
from hvdtrain.run.watch.explanation import Report


@dataclass(frozen=True)
class StallReports:
    """Files of one start of a run.

    Args:
        folder: RUN/stalls/START.
        size: how many ranks there are.
    """

    folder: Path
    size: int

    def write(self, report: Report) -> None:
        """This rank's report, and the stacks of its threads.

        Raises:
            OSError: it cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._stacks(report.rank), stacks().encode())
        write_json(self._report(report.rank), asdict(report))

    def withdraw(self, rank: int) -> None:
        """This rank goes on: its report would be taken for one on the next stall."""
        with suppress(OSError):
            self._report(rank).unlink(missing_ok=True)

    def read(self) -> dict[int, Report]:
        """Of all ranks that have one."""
        found = {}
        for rank in range(self.size):
            with suppress(OSError, ValueError, TypeError):  # not there, or of another version
                found[rank] = Report(**json.loads(self._report(rank).read_text()))
        return found

    def write_explanation(self, text: str) -> Path:
        """Append to explanation.txt."""
        path = self.folder / "explanation.txt"
        with suppress(OSError), path.open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")
        return path

    def _report(self, rank: int) -> Path:
        return self.folder / f"rank_{rank}.json"

    def _stacks(self, rank: int) -> Path:
        return self.folder / f"rank_{rank}.stacks.txt"


def stacks() -> str:
    """The stacks of all threads of this process but the one that asks, the main thread's first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own, main = threading.get_ident(), threading.main_thread().ident
    frames = sorted(sys._current_frames().items(), key=lambda item: item[0] != main)
    parts = [f"process {os.getpid()}"]
    for ident, frame in frames:
        if ident != own:
            parts.append(f"\nthread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}")
    return "\n".join(parts)
