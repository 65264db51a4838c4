"""Train the digits once for each case, one after the other: `option_runs.py FOLDER CASES.json FRAMEWORK`.

CASES.json: {name: [option, …], …}. Each run leaves its folder under FOLDER/NAME. The way is `hvdtrain train`'s, without
a new start of Python, the framework and Horovod for each run.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path

from hvdtrain.adapters.chosen_framework import bind_device_and_threads
from hvdtrain.comm.open import open_communicator
from hvdtrain.config.parser import parse_train_config
from hvdtrain.engine.stop_vote import never_asked
from hvdtrain.models.keras_import import prepare_keras
from hvdtrain.run.prepare import prepare
from hvdtrain.run.training import train
from hvdtrain.tasks.task_registry import load_task
from hvdtrain.topology import detect_topology


def main(folder: Path, cases: dict[str, list[str]]) -> None:
    prepare_keras()
    gc.set_threshold(20_000)  # of the many objects of a graph few are garbage
    topology = detect_topology(os.environ)
    quiet = ["--progress", "none", "--report", "never"]
    configs = {
        name: parse_train_config([*flags, "--output-dir", str(folder / name), *quiet]) for name, flags in cases.items()
    }
    first = next(iter(configs.values()))
    framework = load_task(first.task, first.framework).framework
    bind_device_and_threads(framework, topology)
    # The process sets of the first case with a pipeline serve all of them: they are formed once.
    parallel = next((config.parallel for config in configs.values() if config.parallel.is_pipeline), first.parallel)
    comm = open_communicator(framework, topology, parallel=parallel)
    for name, config in configs.items():
        begin = time.perf_counter()
        kind = load_task(config.task, config.framework)
        code = train(prepare(config, kind, comm), comm, begin, never_asked).code
        if code != 0:
            raise SystemExit(f"{name} ended with code {code}")
    comm.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))
