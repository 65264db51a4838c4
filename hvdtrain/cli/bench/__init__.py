"""`hvdtrain bench`: measurements of this machine or cluster."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from hvdtrain.errors import UsageError, did_you_mean

COMMANDS = {
    "allreduce": ("hvdtrain.cli.bench.allreduce", "how fast workers add up gradients, for growing sizes"),
    "step": ("hvdtrain.cli.bench.step", "how fast training steps are, by Horovod's synthetic benchmark"),
}
"""Measurement → (module with `run(argv) -> int`, one line of help)."""


def run(argv: Sequence[str]) -> int:
    """Run one measurement; returns its exit code.

    Raises:
        UsageError: there is no such measurement, or a flag that it does not have.
    """
    if not argv or argv[0] in ("-h", "--help", "help"):
        print("usage: hvdtrain bench MEASUREMENT ...\n")
        for name, (_, line) in COMMANDS.items():
            print(f"  {name:10} {line}")
        print("\n`hvdtrain bench MEASUREMENT --help` explains each.")
        return 0
    if argv[0] not in COMMANDS:
        raise UsageError(
            f"There is no measurement `hvdtrain bench {argv[0]}`.", "Nothing ran.", did_you_mean(argv[0], COMMANDS)
        )
    code: int = importlib.import_module(COMMANDS[argv[0]][0]).run(argv[1:])
    return code
