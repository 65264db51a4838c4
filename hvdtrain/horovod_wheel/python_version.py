"""Which Pythons hvdtrain runs in. Python 3.8 can import this file and what it imports, to refuse by a sentence."""

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
