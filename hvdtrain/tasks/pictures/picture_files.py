"""Where a data set's own files are: in the data folder, as its archive unpacks or as torchvision downloads."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from data_sharding.storage import is_remote
from hvdtrain.errors import UsageError
from hvdtrain.task.data_access import DataAccess

_SECONDS: Final = 3600.0  # that a download may take
_DOWNLOAD: Final = "import sys; from hvdtrain.models.torchvision_import import download; download(*sys.argv[1:])"
"""In a process of its own, so that a TensorFlow worker does not import torch."""


@dataclass(frozen=True)
class Origin:
    """A data set as its makers publish it."""

    name: str  # what people call it
    folders: tuple[str, ...]  # below the data folder, "" for itself, where its files may be
    files: tuple[str, ...]  # one of these is there wherever the data set is
    archives: str  # what to download
    url: str  # the page that has it
    dataset: str  # its class in torchvision.datasets


def folder_with(data: DataAccess, origin: Origin) -> str:
    """The path or URL of the folder that holds the data set's files. Behind a URL nothing is looked for.

    Raises `UsageError`: it is nowhere where it may be, nor can it be downloaded; says which file to put where.
    """
    root = data.path("")
    if is_remote(root):
        return root
    by_hand = f"unpack {origin.archives} from {origin.url} in it"
    if data.download and _present(root, origin) is None:
        _download(origin.dataset, root, by_hand)
    present = _present(root, origin)
    if present is not None:
        return present
    below = ", ".join(f"{folder}/" for folder in origin.folders if folder)
    raise UsageError(
        f"{root} does not hold {origin.name}: no {' or '.join(origin.files)} in it or in {below}.",
        "There is nothing to train on.",
        f"{by_hand}, or give --data.download where there is a network.",
    )


def _present(root: str, origin: Origin) -> str | None:
    candidates = [Path(root) / folder for folder in origin.folders]
    return next((str(path) for path in candidates if any((path / name).is_file() for name in origin.files)), None)


def _download(dataset: str, folder: str, by_hand: str) -> None:
    """Runs torchvision's download into `folder`, which exists, unless another worker just does."""
    argv = [sys.executable, "-c", _DOWNLOAD, dataset, folder]
    try:
        with FileLock(f"{folder}/.download.lock", timeout=_SECONDS):
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS)
    except (Timeout, subprocess.TimeoutExpired) as error:
        raise _download_failed(dataset, f"it took more than {_SECONDS:.0f} s", by_hand) from error
    except OSError as error:
        raise _download_failed(dataset, str(error), by_hand) from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise _download_failed(dataset, lines[-1] if lines else f"exit code {done.returncode}", by_hand)


def _download_failed(dataset: str, why: str, by_hand: str) -> UsageError:
    return UsageError(
        f"The data set {dataset} cannot be downloaded: {why.rstrip('.')}.",
        "--data.download asks torchvision for it, which needs a network.",
        f"{by_hand}, and leave --data.download out.",
    )
