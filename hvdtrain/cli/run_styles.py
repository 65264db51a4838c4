"""How the states of runs look on a terminal that has colours; the word itself is always there."""

from collections.abc import Mapping
from typing import Final

from hvdtrain.history.run_state import Word

STATE_STYLES: Final[Mapping[Word, str]] = {
    "running": "bold green",
    "finished": "green",
    "stopped": "yellow",
    "failed": "bold red",
    "lost": "red",
    "unknown": "red",
}
