"""Which run of another program a run folder belongs to, so that a resumed run goes on in it."""

import json
from pathlib import Path

from hvdtrain.files import write_json


def kept_run(file: Path) -> dict[str, str]:
    """What `keep_run` wrote into `file`; {} where there is none, or nobody can read it."""
    try:
        kept = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def keep_run(file: Path, **facts: str) -> None:
    """Write down which run it is. Raises OSError."""
    write_json(file, facts)
