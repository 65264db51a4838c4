"""The command line: `hvdtrain [train|env|…]`."""

from hvdtrain.cli.main import main

__all__ = ["main"]
