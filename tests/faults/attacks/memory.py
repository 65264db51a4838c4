"""How much memory a process takes for something: proc(5), VmHWM and clear_refs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path


def grown_mb(process: int | str, attack: Callable[[], object]) -> float:
    """By how much it holds more, at most, while the attack goes on, than before. `process`: its id, or "self"."""
    Path(f"/proc/{process}/clear_refs").write_text("5")  # the peak is what it holds now
    before = _peak_mb(process)
    attack()
    return _peak_mb(process) - before


def _peak_mb(process: int | str) -> float:
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)
    assert found is not None, "of a process that has ended"
    return int(found[1]) / 1024
