"""What user code may do while it trains, row by row of docs/user-code.md. Prints one line of JSON.

python user_code_rows.py torch|tensorflow DATA_FOLDER: in an empty folder.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

import hvdtrain
from hvdtrain import events
from hvdtrain.adapters.adapter_protocol import Adapter
from hvdtrain.comm.communicator import SerialCommunicator
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.run.start import open_adapter
from hvdtrain.topology import Topology

own: Any = import_module("user_code_torch" if sys.argv[1] == "torch" else "user_code_keras")
HERE: Final = Path.cwd()


def nothing() -> None:
    """Change nothing."""


def leave_the_folder() -> None:
    (HERE / "elsewhere").mkdir(exist_ok=True)
    os.chdir(HERE / "elsewhere")


def change_variables() -> None:
    os.environ.update(HOROVOD_RANK="1", HOROVOD_SIZE="2", HVDTRAIN_CACHE_DIR="/nowhere", KERAS_BACKEND="jax")


def seed_all() -> None:
    for seed in (random.seed, np.random.seed, own.seed):
        seed(7)  # type: ignore[operator]


ALLOWED: Final[dict[str, Callable[[], object]]] = {
    "nothing": nothing,
    "working directory": leave_the_folder,
    "environment": change_variables,
    "generators": seed_all,
}


class Rows(own.Rows):  # type: ignore[misc]
    """Its callback does at each EpochStarted what `change` says."""

    change: Callable[[], object] = nothing
    at_step: Callable[[int], object] = staticmethod(lambda _: None)

    def callbacks(self) -> list[Callable[[Any], None]]:
        return [self.react]

    def react(self, event: Any) -> None:
        if isinstance(event, events.EpochStarted):
            type(self).change()
        if isinstance(event, events.StepEnded):
            type(self).at_step(event.step)


def train(name: str, **config: Any) -> dict[str, Any]:
    """With records of a relative path."""
    given = {"global_batch_size": 8, "epochs": 2, "progress": "none", "tune": "never", **config}
    return hvdtrain.train(task=Rows, data={"dir": "rows"}, output_dir=f"runs/{name}", **given)


def allowed() -> dict[str, Any]:
    """The weights that each row comes to."""
    weights = {}
    for name, change in ALLOWED.items():
        environment = dict(os.environ)
        Rows.change = staticmethod(change)
        weights[name] = train(name.replace(" ", "-"))["weights"]
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(HERE)
    Rows.change = staticmethod(nothing)
    return weights


def signals() -> dict[str, Any]:
    """A handler of the user's own is called, and the training ends with a checkpoint all the same."""
    heard: list[int] = []
    Rows.change = staticmethod(lambda: signal.signal(signal.SIGTERM, lambda number, _: heard.append(number)))
    Rows.at_step = staticmethod(lambda step: step == 2 and os.kill(os.getpid(), signal.SIGTERM))
    result = train("signals", epochs=100_000)
    Rows.change, Rows.at_step = staticmethod(nothing), staticmethod(lambda _: None)
    return {
        "heard": heard,
        "status": result["status"],
        "checkpoint": bool(list(HERE.glob("runs/signals/checkpoints/*"))),
    }


def refusal(adapter: Adapter) -> str:
    try:
        adapter.take_changes(SerialCommunicator(Topology.single()))
    except hvdtrain.HvdtrainError as error:
        return error.fact
    return ""


def refused(rows: Mapping[str, tuple[Callable[[Any], object], Callable[[], object]]]) -> dict[str, str]:
    """What is said about each row when the next epoch begins."""
    facts = {}
    for name, (change, undo) in rows.items():
        task = own.Rows()
        adapter = open_adapter(task, Topology.single(), 1, 0.1, TrainingOptions())
        assert refusal(adapter) == ""
        if "learning rate" in name:
            adapter.train_step(own.batch(), 0, 0.1)
            assert refusal(adapter) == ""
        change(adapter)
        facts[name] = refusal(adapter)
        undo()
    return facts


if __name__ == "__main__":
    shutil.copytree(sys.argv[2], "rows")
    found = {"allowed": allowed(), "signals": signals(), "refused": refused(own.REFUSED), **own.more()}
    print(json.dumps(found))
