"""Fetching a data set into the data folder, once, whichever worker comes first."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from filelock import FileLock, Timeout

from hvdtrain.errors import UsageError

_SECONDS: Final = 3600.0


def download(dataset: str, folder: str, by_hand: str) -> None:
    """Run torchvision's download, unless another worker just does.

    Args:
        dataset: a class of torchvision.datasets.
        folder: where its files go, as torchvision lays them out; exists.
        by_hand: how to get the files otherwise, for the HINT.

    Raises:
        UsageError: there is no network, no torchvision, or no room.
    """
    argv = [sys.executable, "-m", "hvdtrain.tasks.pictures.torchvision_download", dataset, folder]
    try:
        with FileLock(f"{folder}/.download.lock", timeout=_SECONDS):
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS)
    except (Timeout, subprocess.TimeoutExpired) as error:
        raise _failed(dataset, f"it took more than {_SECONDS:.0f} s", by_hand) from error
    except OSError as error:
        raise _failed(dataset, str(error), by_hand) from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise _failed(dataset, lines[-1] if lines else f"exit code {done.returncode}", by_hand)


def _failed(dataset: str, why: str, by_hand: str) -> UsageError:
    return UsageError(
        f"The data set {dataset} cannot be downloaded: {why.rstrip('.')}.",
        "--data.download asks torchvision for it, which needs a network.",
        f"{by_hand}, and leave --data.download out.",
    )
