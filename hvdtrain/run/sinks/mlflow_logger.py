"""MLflow: the run's metrics in its tracking store, on a server or in a local folder."""

import importlib
import importlib.util
import logging
import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from data_sharding.storage.redaction import redacted, redacted_values
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.files import write_json
from hvdtrain.history.reading import flattened
from hvdtrain.run.run_folder import RunFolder
from hvdtrain.run.sinks.logger_api import Logger, Outcome, Point, kept_run
from hvdtrain.version import versions

_METRICS_PER_CALL: Final = 1000  # MLflow's own limits
_PARAMS_PER_CALL: Final = 100
_STATUS: Final[Mapping[Outcome, str]] = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}

_log = logging.getLogger("hvdtrain.run")


class MlflowRun:
    """A run of MLflow, or the one that this run folder had before. Store, credentials and experiment are taken from
    MLflow's own variables (MLFLOW_TRACKING_URI, MLFLOW_TRACKING_TOKEN, MLFLOW_EXPERIMENT_NAME …).
    """

    def __init__(self, folder: RunFolder, config: TrainConfig) -> None:
        from mlflow import MlflowClient

        # MLflow discourages folders, but a database needs more than its client's package.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._client = MlflowClient(_store())
        self._keys = Keys(
            in_files=not self._client.tracking_uri.startswith(_DATABASES)  # a server may have files
        )
        self._id = self._earlier(kept_run(folder.mlflow).get("id")) or self._new(folder, config)
        write_json(folder.mlflow, {"id": self._id, "tracking_uri": redacted(self._client.tracking_uri)})
        _log.info("MLflow has this run as %s", self._id)

    def write(self, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(self._keys.of(name), value, int(point.time * 1000), point.step)
            for point in points
            for name, value in point.values.items()
        ]
        for start in range(0, len(metrics), _METRICS_PER_CALL):
            self._client.log_batch(self._id, metrics[start : start + _METRICS_PER_CALL])

    def close(self, outcome: Outcome) -> None:
        self._client.set_terminated(self._id, _STATUS[outcome])

    def _earlier(self, run: str | None) -> str | None:
        """`run`, if it is in this store."""
        from mlflow import MlflowException

        if run is None:
            return None
        try:
            self._client.update_run(run, status="RUNNING")
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            _log.info("MLflow's store has no run %s, so that another one is made", run)
            return None
        return run

    def _new(self, folder: RunFolder, config: TrainConfig) -> str:
        from mlflow.entities import Param

        tags = {f"version.{name}": version for name, version in versions().items()}
        run: str = self._client.create_run(self._experiment(), tags=tags, run_name=folder.path.name).info.run_id
        params = [Param(key_of(name), str(value)) for name, value in flattened(redacted_values(asdict(config)))]
        for start in range(0, len(params), _PARAMS_PER_CALL):
            self._client.log_batch(run, params=params[start : start + _PARAMS_PER_CALL])
        return run

    def _experiment(self) -> str:
        from mlflow import MlflowException

        if experiment_id := os.environ.get("MLFLOW_EXPERIMENT_ID"):
            return experiment_id
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "hvdtrain"
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            try:
                return str(self._client.create_experiment(name))
            except MlflowException:  # another job has made it at the same moment
                experiment = self._client.get_experiment_by_name(name)
                if experiment is None:
                    raise
        return str(experiment.experiment_id)


def key_of(name: str) -> str:
    """A name as MLflow allows it: letters, digits and some signs, and the path of a file."""
    plain = re.sub(r"[^\w./ :-]", "_", name)
    return plain if plain == posixpath.normpath(plain).lstrip("/.") else re.sub(r"[./]", "_", plain)


_DATABASES = ("sqlite:", "postgresql", "mysql", "mssql", "databricks")
"""How the addresses of stores begin that take all names."""


class Keys:
    """Names as MLflow allows them, each the same in one start. Args: `in_files`: its store may be one of files."""

    def __init__(self, in_files: bool) -> None:
        self._in_files = in_files
        self._keys: dict[str, str] = {}
        self._taken: set[str] = set()

    def of(self, name: str) -> str:
        """A store of files has a folder for what stands before a slash, so that "loss" and "loss/box" cannot be metrics
        of one run: the one that comes later has dots in the place of its slashes."""
        if name not in self._keys:
            key = key_of(name)
            if self._in_files and self._is_crossed(key):
                key = key.replace("/", ".")
            while key in self._taken or (self._in_files and self._is_crossed(key)):
                key += "_"
            self._keys[name] = key
            self._taken.add(key)
        return self._keys[name]

    def _is_crossed(self, key: str) -> bool:
        """Whether a folder of it is another metric, or the other way round."""
        return any(key.startswith(f"{other}/") or other.startswith(f"{key}/") for other in self._taken)


def _store() -> str | None:
    """None: as MLflow chooses. By itself it chooses a database, for which it may lack a package: then a folder."""
    if os.environ.get("MLFLOW_TRACKING_URI") or importlib.util.find_spec("sqlalchemy") is not None:
        return None
    return Path("mlruns").absolute().as_uri()


def _prepare() -> None:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    importlib.import_module("mlflow")


LOGGER: Final = Logger(
    "MLflow",
    lambda context, _: MlflowRun(context.folder, context.config),
    module="mlflow",
    package="mlflow-skinny",
    prepare=_prepare,
)
