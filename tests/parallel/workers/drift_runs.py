"""One rank that trains in many ways, and notes what it has after each update: `drift_runs.py FRAMEWORK FOLDER [CASE]`.

Writes FOLDER/rank_N.json: for each case a hash of each array after each update, which sums of its graph depend on time,
and how large each weight is in the end. Ranks exchange nothing for that, so that nothing brings them back into step.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from drift_cases import LARGE_STEPS, LR, STEPS, batch_of, cases_of, task_of

from hvdtrain.adapters.adapter_protocol import Adapter
from hvdtrain.adapters.chosen_framework import bind_device_and_threads
from hvdtrain.comm.open import open_communicator
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.models.keras_import import prepare_keras
from hvdtrain.run.start import open_adapter
from hvdtrain.topology import Topology, detect_topology

Noted = dict[str, Any]


def train(framework: str, topology: Topology, case: str, options: dict[str, Any]) -> Noted:
    """The hashes after each update, or after each call of several; and what the first one's graph has."""
    adapter = open_adapter(task_of(framework, case), topology, 7, LR, TrainingOptions(**options))
    per_call, hashes, sums = options.get("steps_per_call", 1), [], []
    for step in range(0, LARGE_STEPS if case.startswith("large") else STEPS, per_call):
        batches = [batch_of(number, topology.rank, topology.size) for number in range(step, step + per_call)]
        with _watched(framework, sums) if step == 0 else _nothing():
            adapter.train_steps(batches, step, [LR] * per_call)
        hashes.append(_hashes(adapter))
    largeness = {name: float(np.abs(array).sum()) for name, array in adapter.view_weights().items()}
    return {"hashes": hashes, "sums": sums, "largeness": largeness}


def _hashes(adapter: Adapter) -> dict[str, int]:
    """Of what all ranks have: not of BatchNorm's statistics, nor of a rank's parts of an optimizer's state."""
    differ = adapter.rank_local_state()
    return {n: zlib.crc32(a.tobytes()) for n, a in adapter.view_state().items() if n not in differ}


@contextmanager
def _watched(framework: str, sums: list[str]) -> Iterator[None]:
    """Afterwards `sums` holds those that depend on time, of all graphs that were run for the first time inside."""
    if framework == "torch":
        yield
        return
    from order_of_sums import sums_that_depend_on_time
    from tensorflow.python.eager import context

    with context.collect_graphs() as graphs:
        yield
    sums += sums_that_depend_on_time(graphs)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def _disturb() -> None:
    """Have this process's threads share one core for some milliseconds, and then not, at random: they overtake each
    other in ever new orders, and no core computes anything for that."""
    cores, chance = os.sched_getaffinity(0), random.Random()  # Keras draws seeds from the one that all share
    while True:
        for allowed in ({chance.choice([*cores])}, cores):
            for thread in os.listdir("/proc/self/task"):
                with suppress(ProcessLookupError):  # it has ended
                    os.sched_setaffinity(int(thread), allowed)
            time.sleep(chance.uniform(0, 0.04))


def main(framework: str, folder: Path, names: list[str]) -> None:
    prepare_keras()
    gc.set_threshold(20_000)  # of the many objects of a graph few are garbage
    topology = detect_topology(os.environ)
    bind_device_and_threads(framework, topology)
    comm = open_communicator(framework, topology)
    threading.Thread(target=_disturb, daemon=True).start()
    runs: dict[str, Callable[[], Noted]] = {
        case: lambda case=case, options=options: train(framework, topology, case, options)  # type: ignore[misc]
        for case, options in cases_of(framework, topology.size).items()
    }
    if framework == "tensorflow":
        import drift_fit

        runs |= drift_fit.runs(topology.size, _watched)
    noted = {name: run() for name, run in runs.items() if not names or name in names}
    (folder / f"rank_{topology.rank}.json").write_text(json.dumps(noted))
    comm.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
