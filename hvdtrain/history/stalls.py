"""The explanations that a run's watchdog has left: when training did not go on, and who waited for whom."""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from hvdtrain.history.reading import UNREADABLE, read_bounded, reason

_MOST_STARTS, _MOST_BYTES, _MOST_LOOKED_AT = 20, 2**16, 10_000
_NAME: Final = "explanation.txt"


@dataclass(frozen=True)
class Stall:
    """The explanations of one start of a run."""

    start: str  # the name of its folder: when the start began
    text: str  # a line for each explanation


def read_stalls(run: Path) -> tuple[list[Stall], list[str]]:
    """Those of the newest starts, the oldest first; and what could not be read, in sentences."""
    stalls, problems = [], []
    try:
        folders = sorted(islice((run / "stalls").iterdir(), _MOST_LOOKED_AT)) if (run / "stalls").is_dir() else []
    except OSError as error:
        return [], [f"stalls/ {reason(error)}."]
    for folder in folders[-_MOST_STARTS:]:
        try:
            text = read_bounded(folder / _NAME, _MOST_BYTES).decode(errors="replace").strip()
        except (FileNotFoundError, NotADirectoryError):
            continue  # the ranks were still writing when the run ended
        except UNREADABLE as error:
            problems.append(f"stalls/{folder.name}/{_NAME} {reason(error)}.")
            continue
        stalls.append(Stall(folder.name, text))
    return stalls, problems
