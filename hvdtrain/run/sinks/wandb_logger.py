"""Weights & Biases: the run's metrics on its server, or offline in the run folder's wandb/ for `wandb sync`."""

import importlib
import logging
import os
import secrets
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from data_sharding.storage.redaction import redacted_values
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.files import write_json
from hvdtrain.run.run_folder import RunFolder
from hvdtrain.run.sinks.logger_api import Logger, Outcome, Point, kept_run
from hvdtrain.version import versions

_SETTINGS: Final = {
    "WANDB_ERROR_REPORTING": "false",  # nothing is sent anywhere but to the server that is named
    "WANDB_SILENT": "true",  # it writes nothing over the bar, and asks for no key on the terminal
    "WANDB_CONSOLE": "off",  # standard output and error stay as they are
}
"""Environment variables, unless they are set."""

_UPLOAD_SECONDS: Final = 15.0
"""Of waiting for uploads at the end, shorter than the sink's own deadline; W&B waits as long again when Python ends, if
it could not begin before. `wandb sync` uploads what is left."""

_log = logging.getLogger("hvdtrain.run")


class WandbRun:
    """A run of W&B, or the one that this run folder had before. Project, entity, key and mode are taken from W&B's own
    variables and files (WANDB_PROJECT, WANDB_API_KEY, WANDB_MODE …).
    """

    def __init__(self, folder: RunFolder, config: TrainConfig) -> None:
        import wandb

        environ = os.environ
        run_id = environ.get("WANDB_RUN_ID") or kept_run(folder.wandb).get("id") or secrets.token_hex(4)
        self._run = wandb.init(
            id=run_id,
            resume="allow",
            project=environ.get("WANDB_PROJECT") or "hvdtrain",
            name=environ.get("WANDB_NAME") or folder.path.name,
            dir=str(folder.path),
            config={**redacted_values(asdict(config)), "versions": versions()},
            allow_val_change=True,  # a resumed run may have other options
            reinit="create_new",  # a run of the task's own is left alone
            settings=wandb.Settings(finish_timeout=_UPLOAD_SECONDS),
        )
        write_json(folder.wandb, {"id": run_id, "url": self._run.url or ""})
        _log.info("W&B has this run as %s %s", run_id, self._run.url or "(offline)")
        # Not W&B's own steps, which only grow: after a resume, the steps since the checkpoint come again.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def write(self, points: Sequence[Point]) -> None:
        for point in points:
            self._run.log({**point.values, "step": point.step})

    def close(self, outcome: Outcome) -> None:
        self._run.finish(exit_code=1 if outcome == "failed" else 0)


def _prepare() -> None:
    for variable, value in _SETTINGS.items():
        os.environ.setdefault(variable, value)
    importlib.import_module("wandb")


LOGGER: Final = Logger(
    "W&B",
    lambda context, _: WandbRun(context.folder, context.config),
    module="wandb",
    package="wandb",
    prepare=_prepare,
)
