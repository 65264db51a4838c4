"""The command line: `hvdtrain [train|env|…]`."""

from __future__ import annotations

from hvdtrain.cli.main import main

__all__ = ["main"]
