"""A task and its data: opened while Horovod starts, where that may be, or when they are asked for."""

from collections.abc import Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

from data_sharding import Catalog
from data_sharding.background import in_background
from data_sharding.errors import ShardingError
from data_sharding.storage import is_remote
from hvdtrain.config.train_config import DataConfig, TrainConfig
from hvdtrain.data.file_cache import file_cache
from hvdtrain.data.printed_lines import PRINTED
from hvdtrain.errors import UsageError
from hvdtrain.run.data_parts import divided
from hvdtrain.set_names import UNNAMED
from hvdtrain.task.data_access import DataAccess
from hvdtrain.task.splits import Splits, require_catalog, validation_sets
from hvdtrain.task.task import Task
from hvdtrain.tasks.task_registry import build_task, task_arguments
from hvdtrain.user_cache import user_cache

_SETTLE_SECONDS: Final = 60.0


@dataclass(frozen=True)
class OpenedData:
    """Records on disk: `train` is None where it comes through pipes."""

    train: Catalog | None
    validation: Mapping[str, Catalog]  # by the names of sets; empty where there are none

    def parts(self) -> dict[str, Catalog]:
        """By what they are called in messages."""
        train = {} if self.train is None else {"training": self.train}
        return train | {f"validation {name}".rstrip(): catalog for name, catalog in self.validation.items()}


class DataOpening:
    """Opens a task's data once; what the task's defaults fill into `config` is not read."""

    def __init__(self, config: TrainConfig, task_class: type[Task]) -> None:
        self._config, self._task_class = config, task_class
        self._begun: Future[tuple[Task, OpenedData]] | None = None
        self._opened: tuple[Task, OpenedData] | None = None

    def begin(self) -> None:
        """Open it in a thread from now on, if that may be. What torch's adapter imports is imported there, too."""
        if may_begin_early(self._config, self._task_class):
            self._begun = in_background(self._import_and_open)

    def result(self) -> tuple[Task, OpenedData]:
        """Raises what opening it raises: `UsageError`, `ShardingError`, what the task raises."""
        if self._opened is None:
            self._opened = _open(self._config, self._task_class) if self._begun is None else self._begun.result()
        return self._opened

    def settle(self) -> None:
        """Wait, for a limited time, until a thread that was begun has ended: a process may not exit before."""
        if self._begun is not None:
            wait([self._begun], _SETTLE_SECONDS)

    def _import_and_open(self) -> tuple[Task, OpenedData]:
        if self._task_class.framework == "torch":  # TensorFlow's own imports may not run beside its first operations
            import_module("hvdtrain.adapters.torch.adapter")  # which `start.open_adapter` will need
        return _open(self._config, self._task_class)


def may_begin_early(config: TrainConfig, task_class: type[Task]) -> bool:
    """Whether the task says so, and nothing is opened that could do harm before all ranks are there.

    Storage behind a URL opens connections, which could not be told from Horovod's. A download waits until everything
    else was found to be right.
    """
    url = config.data.dir is not None and is_remote(config.data.dir)
    return _opens_early(task_class) and config.data.mode == "file" and not url and not config.data.download


def _opens_early(task_class: type[Task]) -> bool:
    """What a class says holds for its own methods and those that it inherits, not for a subclass's."""

    def definer(name: str) -> type:
        return next(cls for cls in task_class.__mro__ if name in vars(cls))

    said = definer("opens_early")
    return task_class.opens_early and all(issubclass(said, definer(name)) for name in ("__init__", "open_data"))


def _open(config: TrainConfig, task_class: type[Task]) -> tuple[Task, OpenedData]:
    task = build_task(task_class, task_arguments(task_class, config.model, config.task_args))
    by_pipe = config.data.mode == "pipe"
    if task_class.needs_data_dir and config.data.dir is None:
        raise UsageError(
            f"The task {config.task} reads its records from a folder, and none was given.",
            f"There is nothing to {'validate' if by_pipe else 'train'} on.",
            "give it as --data.dir DIR.",
        )
    if config.optimizer is not None and "weight_decay" in config.task_args:
        raise UsageError(
            f"--task-args.weight-decay is given with --optimizer {config.optimizer}.",
            "It is the decay of the task's own optimizer, which is not used then.",
            f"give it as --weight-decay {config.task_args['weight_decay']}.",
        )
    if config.data.download and not task_class.can_download:
        raise UsageError(
            f"The task {config.task} cannot download its data.",
            "--data.download would do nothing.",
            "leave it out, and give the data as --data.dir DIR.",
        )
    access = data_access(config.data)
    if by_pipe:
        return task, OpenedData(None, _validation_by_pipe(task, access, config.data))
    with PRINTED.sorted_out():  # the first items of an object are made, and may print
        splits = task.open_data(access)
    if not isinstance(splits, Splits):
        raise UsageError(
            f"{type(task).__name__}.open_data returned an object of type {type(splits).__name__}.",
            "It is to say which records are trained on, and which ones are validated on.",
            "return hvdtrain.Splits(data.catalog(NAMES)), with validation=data.catalog(OTHERS) if there are any.",
        )
    train, part = divided(splits.train, config.data)
    given = given_validation(task, access, config.data) if part is None else {UNNAMED: part}
    opened = OpenedData(train, validation_sets(splits.validation, "") if given is None else given)
    _require_items(task, opened)
    return task, opened


def _require_items(task: Task, opened: OpenedData) -> None:
    """Raises PlanError: there is no `decode` to take items apart, and the first ones are not as their names say."""
    with PRINTED.sorted_out():
        for catalog in opened.parts().values() if type(task).decode is Task.decode else ():
            catalog.format.require_items()


def given_validation(task: Task, access: DataAccess, config: DataConfig) -> dict[str, Catalog] | None:
    """The sets that --data.validation names; None where it is not given. Raises as `named_sets`."""
    patterns = config.validation_patterns()
    return None if patterns is None else named_sets(task, access, patterns)


def named_sets(task: Task, access: DataAccess, patterns: Mapping[str, str]) -> dict[str, Catalog]:
    """Name → records of the pattern. Raises what `Task.open_set` raises; UsageError: it has returned no catalog."""
    sets = {name: task.open_set(access, pattern) for name, pattern in patterns.items()}
    for catalog in sets.values():
        require_catalog(catalog, f"What {type(task).__name__}.open_set returned")
    return sets


def tasks_validation(task: Task, access: DataAccess, config: DataConfig) -> dict[str, Catalog]:
    """The sets that the task itself validates on, or the part of its training records that was set aside.

    Raises what `Task.open_validation` or `open_data` raises; UsageError: it has returned something else than sets.
    """
    if config.validation_split is not None or config.folds is not None:
        _, part = divided(task.open_data(access).train, config)
        return validation_sets(part, "")
    return validation_sets(task.open_validation(access), f"What {type(task).__name__}.open_validation returned")


def _validation_by_pipe(task: Task, access: DataAccess, config: DataConfig) -> dict[str, Catalog]:
    given = given_validation(task, access, config)
    if given is not None:
        return given
    try:
        return tasks_validation(task, access, config)
    except (UsageError, ShardingError) as error:
        if type(task).open_validation is not Task.open_validation:
            raise
        raise UsageError(
            error.fact,
            error.conflict,
            f"{error.hint.rstrip('.')}; {type(task).__name__} has no open_validation(), so its training files are "
            "opened, too.",
        ) from error


def data_access(config: DataConfig, of_training: bool = False) -> DataAccess:
    """What a task opens its data with. Args: `of_training`: the folder is that of a run's training, not given now.

    Raises UsageError: there is no such folder, or it cannot be made for a download.
    """
    folder = config.dir
    if folder is not None and not is_remote(folder):
        path = Path(folder).expanduser().absolute()
        if config.download:
            try:
                path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UsageError(
                    f"The folder {path} cannot be made: {error.strerror}.",
                    "--data.download is to put data there.",
                    "give a folder that you can write as --data.dir.",
                ) from error
        if not path.exists():
            raise _no_folder(path, folder, of_training)
        folder = str(path)
    cache = user_cache() / "data"
    is_piped = config.mode == "pipe"
    return DataAccess(folder, cache, config.on_corrupt, config.download, file_cache(config), is_piped)


def _no_folder(path: Path, written: str, of_training: bool) -> UsageError:
    fact = f"There is no folder {path}."
    if not of_training:
        return UsageError(fact, "It was given as --data.dir.", "give one that exists.")
    relative = "" if Path(written).expanduser().is_absolute() else ", a relative path"
    said = f"The run was trained with --data.dir {written!r}{relative}."
    return UsageError(fact, said, "give the folder in which its data are now as --data.dir DIR.")
