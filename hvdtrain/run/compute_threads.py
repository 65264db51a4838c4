"""How many threads compute for each worker, where the options say so."""

import os
from collections.abc import MutableMapping
from typing import Final

from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.topology.control_group import usable_cores
from hvdtrain.world_channel import THREADS_VARIABLE, WORLD_VARIABLE

_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def compute_threads(options: TrainingOptions) -> int | None:
    """What the options ask for; None: the launcher's or the framework's own choice.

    With virtual workers it must not depend on how many workers a host has, since kernels divide their sums by it; nor
    on the host, for a worker that joins others in training.
    """
    if options.compute_threads is None and options.virtual_workers is not None:
        told = os.environ.get(THREADS_VARIABLE, "") if WORLD_VARIABLE in os.environ else ""
        return int(told) if told.isdecimal() else max(1, usable_cores(os.cpu_count() or 1) // options.virtual_workers)
    return options.compute_threads


def set_compute_threads(options: TrainingOptions, environ: MutableMapping[str, str]) -> None:
    """Before the framework computes anything."""
    if (threads := compute_threads(options)) is not None:
        environ.update(dict.fromkeys(_VARIABLES, str(threads)))
        if options.virtual_workers is not None:
            environ[THREADS_VARIABLE] = str(threads)
