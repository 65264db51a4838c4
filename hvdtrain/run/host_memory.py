"""How much of its host's memory a worker may still take for a model."""

import math
import os

from hvdtrain.doctor.machine import memory_limit
from hvdtrain.engine.memory import own_bytes
from hvdtrain.topology import Topology


def host_memory_left(topology: Topology) -> float:
    """Bytes: the worker's equal part of the machine or of its control group, without what its process has by now.

    Of that, pages of libraries' files, which all processes share, are not counted.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(0.0, min(machine, memory_limit() or math.inf) / topology.local_size - own_bytes())
