"""A run that is measured, as a process of its own."""

import shlex
import subprocess
from collections.abc import Sequence
from typing import Final

from hvdtrain.errors import HvdtrainError

_DEADLINE_S: Final = 3600.0
_SHOWN: Final = 1000  # Last characters of what a failed run printed


def printed_by(argv: Sequence[str]) -> str:
    """What the command printed. Raises `HvdtrainError` where it cannot be started, fails, or takes an hour."""
    hint = f"try it by itself: {shlex.join(argv)}"
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_DEADLINE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HvdtrainError(
            f"A run that was to be measured could not be made: {error}.", "Nothing can be compared.", hint
        ) from error
    if done.returncode != 0:
        raise HvdtrainError(
            f"A run that was to be measured ended with exit code {done.returncode}.",
            (done.stderr.strip() or done.stdout.strip())[-_SHOWN:] or "It printed nothing.",
            hint,
        )
    return done.stdout
