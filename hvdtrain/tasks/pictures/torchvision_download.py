"""Downloads a data set by torchvision: python -m hvdtrain.tasks.pictures.torchvision_download CIFAR10 FOLDER

A process of its own, so that a TensorFlow worker does not import torch.
"""

from __future__ import annotations

import socket
import sys
from typing import Final

from hvdtrain.models.torchvision_import import import_torchvision

_SILENCE_SECONDS: Final = 20.0  # after which a server that says nothing is given up


def main(name: str, folder: str) -> None:
    """Download, check the MD5 that torchvision knows, and unpack."""
    socket.setdefaulttimeout(_SILENCE_SECONDS)
    kind = getattr(import_torchvision().datasets, name)
    kind(folder, download=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
