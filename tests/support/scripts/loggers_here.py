"""A run and its resumption in all loggers: python loggers_here.py FOLDER. Prints what they then have, as JSON.

W&B is offline and MLflow's store is a folder. The frameworks are installed, and nothing here needs them.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from hvdtrain.config.train_config import TrainConfig
from hvdtrain.engine import events
from hvdtrain.measured import Seconds
from hvdtrain.run.run_folder import RunFolder
from hvdtrain.run.sinks import logger_sink
from hvdtrain.run.sinks.logger_api import require_loggers
from hvdtrain.run.sinks.sink import SinkContext
from hvdtrain.run.sinks.sink_registry import open_sinks
from hvdtrain.topology import Topology

LOGGERS = ("tensorboard", "wandb", "mlflow")


def train(folder: RunFolder, first: int, last: int, finished: bool) -> None:
    """Updates `first` to `last`, whose losses tell the start that made them."""
    config = TrainConfig(loggers=",".join(LOGGERS), logger_histograms=1, logger_pictures=2, progress="none")
    state = {"model/weight": np.ones(3, np.float32)}
    with ExitStack() as stack:
        sinks = list(open_sinks(SinkContext(config, folder, Topology.single(), state=lambda: state), stack))
        told: list[events.Event] = [events.RunStarted(first - 1, 8, 8, 1)]
        for step in range(first, last + 1):
            told += [events.StepEnded(0, step), logged(step, step + 100.0 * (first - 1))]
        told += [events.Evaluated(0, last, 9, 0.5, {"accuracy": 0.75}), events.EpochEnded(0, last)]
        for event in [*told, events.RunEnded(last, last, finished)]:
            for sink in sinks:
                sink(event)


def logged(step: int, loss: float) -> events.Logged:
    return events.Logged(
        epoch=0,
        step=step,
        lr=0.1,
        samples=10,
        samples_per_second=100.0,
        values={"loss": loss},
        rank_seconds=(Seconds(),),
        memory=(5,),
    )


def in_mlflow(run: str) -> dict[str, Any]:
    from mlflow import MlflowClient

    client = MlflowClient(Path("mlruns").absolute().as_uri())
    (experiment,) = client.search_experiments(filter_string="name = 'hvdtrain'")
    ids = [found.info.run_id for found in client.search_runs([experiment.experiment_id])]
    kept = client.get_run(run)
    history = [(metric.step, metric.value) for metric in client.get_metric_history(run, "train/loss")]
    return {
        "ids": ids,
        "status": kept.info.status,
        "name": kept.info.run_name,
        "params": kept.data.params,
        "accuracy": kept.data.metrics["validation/accuracy"],
        "loss": sorted(history),
    }


def main() -> None:
    os.chdir(sys.argv[1])
    os.environ["WANDB_MODE"] = "offline"
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    for outcome in logger_sink._DEADLINES:
        logger_sink._DEADLINES[outcome] = 300.0
    logger_sink._SECONDS = 0.0  # between two points
    require_loggers(LOGGERS)
    folder = RunFolder(Path("out").absolute(), 1)
    folder.path.mkdir()
    train(folder, 1, 6, finished=False)
    first = {name: json.loads((folder.path / f"{name}.json").read_text())["id"] for name in ("wandb", "mlflow")}
    train(folder, 5, 8, finished=True)
    again = {name: json.loads((folder.path / f"{name}.json").read_text())["id"] for name in ("wandb", "mlflow")}
    offline = sorted(folder.path.glob("wandb/offline-run-*/*.wandb"))
    facts = {
        "ids": [first, again],
        "mlflow": in_mlflow(first["mlflow"]),
        "wandb": [file.name for file in offline],
        "wandb_has_metrics": [b"samples_per_second" in file.read_bytes() for file in offline],
        "frameworks": sorted({"torch", "tensorflow", "keras", "horovod"} & sys.modules.keys()),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
