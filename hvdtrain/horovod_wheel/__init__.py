"""Builds Horovod from its source release, once per machine and combination of versions, and installs it.

    python3 -m hvdtrain.horovod_wheel setup         the whole .venv; what `make setup` calls
    python -m hvdtrain.horovod_wheel install        Horovod into the environment of this Python
    python -m hvdtrain.horovod_wheel recipe         everything that decides the binary, and its key

Horovod 0.28.1 (June 2023) is its last release. It comes as source only and does not build against
today's PyTorch and TensorFlow as it is; `patches/` holds all that is changed. This package uses the
standard library only, because it runs before anything is installed.

    setup ─ environment ─ packages: pip install, then
    install ─ recipe (toolchain, cuda)  cache: hit ─ pip install the wheel ─ verify
                                               miss ─ source, patches, build ─ store

Python 3.8 can import this file and what it imports, so that it is refused by a sentence.
"""

from __future__ import annotations

import sys

from hvdtrain.errors import UsageError

SUPPORTED = ((3, 11), (3, 12), (3, 13))


def require_supported(version: tuple[int, int] = sys.version_info[:2]) -> None:
    """Raises UsageError unless Python `version` is one of `SUPPORTED`."""
    if version not in SUPPORTED:
        raise UsageError(
            f"This is Python {version[0]}.{version[1]}.",
            "hvdtrain and the pinned versions of its packages run in Python 3.11, 3.12 and 3.13.",
            "install one of these and run `make setup PYTHON=/path/to/python3.13`.",
        )
