"""The page and the picture of saved results, from their JSON alone: `python -m benchmarks.render RESULT.json ...`."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.pictures import style


def render(path: Path) -> None:
    """Write the .md and the .svg beside a result; its name begins with that of its benchmark."""
    result: dict[str, Any] = json.loads(path.read_text())
    report = import_module(f"benchmarks.{path.name.partition('-')[0]}.report")
    path.with_suffix(".md").write_text(report.markdown(result))
    style.save(report.picture(result), path.with_suffix(".svg"))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        render(Path(name))
