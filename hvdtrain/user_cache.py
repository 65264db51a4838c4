"""The one folder in which hvdtrain keeps things of this user between runs."""

import os
from collections.abc import Mapping
from pathlib import Path


def user_cache(environ: Mapping[str, str] = os.environ) -> Path:
    """HVDTRAIN_CACHE_DIR, else `hvdtrain` under XDG_CACHE_HOME or ~/.cache. May not exist yet. Stdlib only: the
    installer uses it before anything else is installed.
    """
    chosen = environ.get("HVDTRAIN_CACHE_DIR")
    if chosen:
        return Path(chosen).expanduser()
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "hvdtrain"
