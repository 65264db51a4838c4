"""Which of the user's variables workers on other hosts need."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

NEEDED = (
    *("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "KERAS_BACKEND"),
    *("OMP_NUM_THREADS", "HOROVOD_*", "HVDTRAIN_*", "NCCL_*", "TF_*", "UCX_*", "FI_*"),
)
"""Patterns. Without PATH another Python may start than the one that was tried here."""

PLACE = (
    *("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_*", "HOROVOD_CROSS_*", "HOROVOD_HOSTNAME", "HOROVOD_CONTROLLER"),
    *("HOROVOD_GLOO_*", "HOROVOD_CPU_OPERATIONS", "HOROVOD_ELASTIC", "*_SECRET_KEY"),
)
"""Patterns of what one worker of another job was told about its place, and of that job's secrets."""


def needed_names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the variables in `environ` that workers need, in a fixed order."""
    return tuple(name for name in sorted(environ) if _any(name, NEEDED) and not _any(name, PLACE))


def _any(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
