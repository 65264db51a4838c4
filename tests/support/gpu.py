"""What the tests of tests/gpu need, a GPU that torch can compute on, and runs of one process on it."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from support.commands import Ended, run

UNTESTED = "nothing of docs/gpu.md has run on a GPU here."
NEEDED = (
    "an NVIDIA GPU with its driver, and the CUDA build of torch, which `make setup EXTRAS=torch,mpi,cuda` installs."
)


def obstacle() -> str | None:
    """Why torch cannot compute on a GPU, a sentence; None: it can."""
    if torch.cuda.is_available():
        return None
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is a build for CPUs."
    return f"torch {torch.__version__} is built for CUDA {torch.version.cuda} and sees no GPU."


def visible() -> dict[str, str]:
    """The variable by which a command sees the GPUs of this process: by default, tests' commands see none."""
    return {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0")}


def on_gpu(argv: list[str], cwd: Path) -> Ended:
    """`python -m hvdtrain ARGV` with the GPUs that this process sees."""
    return run(argv, cwd, visible())


def trained(folder: Path, *words: str) -> Path:
    """`folder`, with the run of one process on GPU 0 that the options `words` describe; it has ended well."""
    ended = on_gpu(["--output-dir", str(folder), *words], folder.parent)
    assert ended.code == 0, ended
    return folder
