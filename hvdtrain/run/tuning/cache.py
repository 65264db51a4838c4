"""What was measured for a job before: one file in the user's cache for each model, batch, machine and software."""

import hashlib
import json
import logging
import os
import platform
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from hvdtrain.adapters.open import device_kind
from hvdtrain.comm.interface import Communicator
from hvdtrain.comm.messages import gather_json
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.files import write_json
from hvdtrain.run.prepare import RunSetup
from hvdtrain.state import State
from hvdtrain.user_cache import user_cache
from hvdtrain.version import versions

_log = logging.getLogger("hvdtrain.tuning")

_KEYS = ("framework", "task", "task_args", "data", "optimizer", "global_batch_size", "world_size")
_VARIABLES = (
    *("HOROVOD_CYCLE_TIME", "HOROVOD_CYCLE_WAKE", "HOROVOD_FUSION_THRESHOLD", "HOROVOD_CPU_OPERATIONS"),
    *("HOROVOD_CONTROLLER", "HOROVOD_HIERARCHICAL_ALLREDUCE", "OMP_NUM_THREADS", "OMPI_MCA_btl"),
)


class TuningCache:
    """Where the choice for one job is remembered; what cannot be read or written is a warning. Used on rank 0.

    Args:
        facts: what decides how long a step takes, as JSON holds it.
    """

    def __init__(self, facts: Any) -> None:
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        self.path: Path = user_cache() / "tuning" / f"{digest[:32]}.json"

    def read(self) -> int | None:
        """Bytes of the largest bucket; None where nothing is remembered."""
        try:
            cap = json.loads(self.path.read_text())["bucket_cap"]
            if isinstance(cap, int) and cap > 0:
                return cap
            _log.warning("%s is not used: its bucket_cap is %r", self.path, cap)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("%s is not used: %s", self.path, error)
        return None

    def write(self, cap: int, milliseconds: dict[str, list[float]]) -> None:
        """Remember the choice, and for people what was measured."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.path, {"bucket_cap": cap, "milliseconds": milliseconds})
        except OSError as error:
            _log.warning("what was measured is not remembered: %s", error)


def open_cache(setup: RunSetup, state: State, comm: Communicator) -> TuningCache:
    """The same for two jobs whose steps take as long. Collective: it asks all ranks for their machines.

    Args:
        state: of the adapter, for the names, shapes and dtypes of weights.
    """
    machine = [_processor(), device_kind(setup.task.framework), os.cpu_count(), comm.topology.local_size]
    weights = {name: array for name, array in state.items() if name.startswith("model/")}
    return TuningCache(
        {
            "job": {key: setup.about[key] for key in _KEYS},
            "options": {field.name: getattr(setup.config, field.name) for field in fields(TrainingOptions)},
            "weights": [[name, array.dtype.str, array.shape] for name, array in sorted(weights.items())],
            "machines": gather_json(comm, machine, "hvdtrain.tuning.machines"),
            "launcher": comm.topology.launcher,
            "variables": {name: os.environ.get(name) for name in _VARIABLES},
            "versions": versions(),
        }
    )


def _processor() -> str:
    try:
        found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.machine()
