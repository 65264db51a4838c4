"""What was measured for a job before: one file in the user's cache for each model, batch, machine and software."""

import hashlib
import json
import logging
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hvdtrain.adapters.chosen_framework import device_kind
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import gather_json
from hvdtrain.config.option import changed_options
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.files import write_json
from hvdtrain.named_arrays import State, weights_of
from hvdtrain.run.prepare import RunSetup
from hvdtrain.user_cache import user_cache
from hvdtrain.version import versions

_log = logging.getLogger("hvdtrain.tuning")

MIB: Final = 2**20

_KEYS = ("framework", "task", "task_args", "data", "optimizer", "global_batch_size", "world_size")
_VARIABLES = (
    *("HOROVOD_CYCLE_TIME", "HOROVOD_CYCLE_WAKE", "HOROVOD_FUSION_THRESHOLD", "HOROVOD_CPU_OPERATIONS"),
    *("HOROVOD_CONTROLLER", "HOROVOD_GLOO_SHARED_MEMORY", "HOROVOD_HIERARCHICAL_ALLREDUCE", "OMP_NUM_THREADS"),
    "OMPI_MCA_btl",
)


@dataclass(frozen=True)
class Tuned:
    bucket_cap: int  # bytes of the largest bucket of gradients
    threads: int | None  # compute threads of each worker; None: as many as without tuning
    source: str  # "measurement", "cache" or "checkpoint"

    @classmethod
    def from_json(cls, content: Any, source: str) -> "Tuned":
        """What `to_json` made. KeyError, TypeError or ValueError: of something else."""
        cap, threads = float(content["bucket_cap_mb"]), content["threads"]
        if not 0 < cap < float("inf") or not (threads is None or int(threads) > 0):
            raise ValueError(f"{content} is not a choice")
        return cls(int(cap * MIB), threads, source)

    def to_json(self) -> dict[str, Any]:
        """As result.json and checkpoints hold it."""
        return {"bucket_cap_mb": self.bucket_cap / MIB, "threads": self.threads, "from": self.source}


class TuningCache:
    """Where the choice for one job is remembered; what cannot be read or written is a warning. Used on rank 0. `facts`:
    what decides how long a step takes, as JSON holds it."""

    def __init__(self, facts: Any) -> None:
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        self.path: Path = user_cache() / "tuning" / f"{digest[:32]}.json"

    def read(self) -> Tuned | None:
        """What is remembered."""
        try:
            return Tuned.from_json(json.loads(self.path.read_text())["tuned"], "cache")
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("%s is not used: %r", self.path, error)
        return None

    def write(self, tuned: Tuned, measured: str) -> None:
        """Remember the choice, and for people what was measured."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.path, {"tuned": tuned.to_json(), "measured": measured})
        except OSError as error:
            _log.warning("what was measured is not remembered: %s", error)


def open_cache(setup: RunSetup, state: State, threads: int, comm: Communicator) -> TuningCache:
    """The same for two jobs whose steps take as long. Collective: it asks all ranks for their machines. `state` and
    `threads` are the adapter's."""
    machine = [_processor(), device_kind(setup.task.framework), os.cpu_count(), threads, comm.topology.local_size]
    return TuningCache(
        {
            "job": {key: setup.about[key] for key in _KEYS},
            "options": changed_options(setup.config, TrainingOptions),
            "weights": [[name, array.dtype.str, array.shape] for name, array in sorted(weights_of(state).items())],
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
