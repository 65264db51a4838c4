"""`Task`: what a user writes to train their own model on their own data.

A task says where the records are, how a batch of them becomes arrays, which model is trained, and what is
measured per sample. Everything else (shards, gradients, learning rate, metrics over ranks, checkpoints,
resume) is hvdtrain's. The same class shape serves both frameworks; `framework` says which one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Final

from numpy.typing import NDArray

from data_sharding import Catalog, RecordBatch
from hvdtrain.errors import UsageError
from hvdtrain.measured import LINE_KEYS, METRICS
from hvdtrain.task.data_access import DataAccess
from hvdtrain.task.predicting import RecordedModel
from hvdtrain.task.splits import Splits, Validation

Features = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class TaskDefaults:
    """What is used where the user's config says nothing. `global_batch_size` is in records, over all workers."""

    epochs: int = 10
    global_batch_size: int = 64
    lr: float = 1e-3
    warmup_epochs: float = 0.0


class Task(ABC):
    """One learning problem in one framework. Subclass it; constructor arguments become `--task-args.NAME VALUE`.

    An argument called `model` is also `--model NAME`: such a task has several models, which are chosen by name.
    """

    framework: ClassVar[str]
    """"torch" or "tensorflow"."""

    defaults: ClassVar[TaskDefaults] = TaskDefaults()

    needs_data_dir: ClassVar[bool] = False
    """Whether `--data.dir` must be given."""

    can_download: ClassVar[bool] = False
    """Whether `open_data` can download the data, as `data.download` asks."""

    opens_early: ClassVar[bool] = False
    """Whether the constructor and `open_data` may run in a thread, while Horovod starts: they ask Horovod nothing, open
    no connections, and leave nothing to the thread that they run in. Said for the methods of this class: a subclass
    with another constructor or `open_data` says it again."""

    smallest_slice: int = 1
    """Records that each worker must have in a full step: 2 for models whose BatchNorm needs statistics of a batch."""

    label_feature: ClassVar[str | None] = None
    """Which feature of `decode` is the class of each record, int64 [n]; None: the task is no classification. The model
    then returns logits [n, classes], unless `predict` is overridden."""

    found: Mapping[str, Any] = MappingProxyType({})
    """Constructor arguments that `open_data` learnt from the data, e.g. how many classes there are. Checkpoints keep
    them, so that `hvdtrain export` builds the same model without the data."""

    def callbacks(self) -> Sequence[Callable[[Any], None]]:
        """Functions that receive every event of the run (`hvdtrain.events` documents them and their order), after
        hvdtrain's own. Called once on every rank when training begins. An event is a value: use `match`. A callback may
        call a collective if it does so on every rank; an exception in it ends the run.
        """
        return ()

    def example(self) -> Features | None:
        """Arrays as `decode` gives them, of two samples or more with any values: `hvdtrain export` learns from them
        what the model takes. None, unless overridden: it decodes records of the run's data for that.
        """
        return None

    @abstractmethod
    def open_data(self, data: DataAccess) -> Splits:
        """Find (or, under a lock, make) the records: most often `data.catalog("train-*.tfrecord")`. Called once on
        every rank.

        Raises:
            UsageError or data_sharding.ShardingError: the data is missing or not what the task expects.
        """

    def open_validation(self, data: DataAccess) -> Validation:
        """The validation records alone, as `Splits` takes them, for pipe mode, where the training records come through
        pipes. Called instead of `open_data`, once on every rank.

        Left as it is, it takes those of `open_data`, which then needs the training files on every host as well.

        Raises:
            UsageError or data_sharding.ShardingError: as `open_data`.
        """
        return self.open_data(data).validation

    def open_set(self, data: DataAccess, pattern: str) -> Catalog:
        """The records of a set that the user names by its files: --data.validation, `hvdtrain evaluate --set`. To be
        overridden where `decode` needs more than their names say: a certain format, or the classes of a folder. Called
        after `open_data`, or without it where a trained model is measured.

        Raises:
            UsageError or data_sharding.ShardingError: as `open_data`.
        """
        return data.catalog(pattern)

    def decode(self, records: RecordBatch) -> Features:
        """Turn n serialized records into arrays whose first axis is n. Runs in a background thread.

        Unless overridden, arrays are made of the items of `data.dataset(…)`: there, `records` is a sequence of items.

        It runs ahead of training and its events: the next epoch's first records are decoded before this one's end is
        told.

        `records` is a sequence of bytes that also knows the records' ids, their labels where the format keeps those
        apart, and in training `records.random`: draws for augmentation that are the same at every world size.
        """
        if records.collate is None:
            raise UsageError(
                f"The task {type(self).__name__} has no decode(), and its records are bytes of files.",
                "What arrays they hold is the task's to know.",
                "define decode(self, records), as docs/tasks.md shows.",
            )
        return records.collate(records.payloads)

    @abstractmethod
    def build_model(self) -> Any:
        """A new `torch.nn.Module`, or a built `keras.Model`, with freshly initialized weights."""

    @abstractmethod
    def build_optimizer(self, model: Any, lr: float) -> Any:
        """A `torch.optim.Optimizer` or `keras.optimizers.Optimizer`, whose learning rate is set again before each step.

        `lr` is the schedule's peak. Parameter groups of a torch optimizer that are built with another learning rate
        keep their proportion to it.
        """

    def stages(self, model: Any) -> Sequence[Any] | None:  # noqa: ARG002
        """The modules of a torch model that are called one after the other, each with the tensor that the one before it
        returned, for `--parallel.stages`: the model is cut between two of them. None, unless overridden: torch.fx finds
        the places.

        Args:
            model: what `build_model` returned.
        """
        return None

    @abstractmethod
    def measure(self, model: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Per-sample values, each a tensor of shape [n]; "loss" is differentiated, all are averaged over samples.

        Do not reduce over samples: masks and unequal slices are weighted by hvdtrain, so that the mean is the mean
        over the global batch at every world size. The model is in training or evaluation mode as needed.

        All ranks return the same names in a step. A name that only some steps have is averaged over their samples.
        Names that lines of metrics.jsonl have already, such as "step" and "lr", are refused.

        Args:
            model: what `build_model` returned.
            batch: the arrays of `decode` as tensors on the model's device.
        """

    def predict(self, model: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
        """What `hvdtrain predict` writes of a batch: named tensors, the first axis of each has n rows.

        Unless overridden it is {"output": what the model returns inside of `measure`}. Where `label_feature` is set,
        "label" (the most probable class) and "probability" (the softmax) take the place of "output". A classification
        that overrides it returns "label" [n] itself.

        Args: as those of `measure`.
        """
        recorded = RecordedModel(model)
        self.measure(recorded, batch)
        return {"output": recorded.output(type(self).__name__)}


_TAKEN: Final = LINE_KEYS | {metric.name for metric in METRICS}


def check_measures(measures: Any, samples: int, is_tensor: Callable[[Any], bool]) -> None:
    """Raise `UsageError` unless `measures` is what `Task.measure` promises for `samples` samples, in tensors of its
    framework."""
    if not isinstance(measures, dict) or "loss" not in measures:
        raise UsageError(
            f"The task's measure() returned {type(measures).__name__} without a 'loss'.",
            "There is nothing to differentiate.",
            "return a dict of per-sample tensors with the key 'loss'.",
        )
    refuse_taken(_TAKEN.intersection(measures), "The task's measure() returned a value under the name")
    expected = (samples,)
    for name, value in measures.items():
        if not isinstance(name, str) or not is_tensor(value):
            raise _wrong_kind(name, value, samples)
        if value.shape != expected:
            raise UsageError(
                f"The task's measure() returned {name!r} of shape {tuple(value.shape)} for {samples} samples.",
                "hvdtrain weights each sample itself, so values must not be averaged over the batch.",
                f"return one value a sample, shape ({samples},), e.g. with reduction='none'.",
            )


def refuse_taken(names: Collection[str], fact: str) -> None:
    """Raise `UsageError` for `names` that lines of metrics.jsonl have for something else. Args: `fact`: what such a
    name was given for; it follows."""
    if names:
        name = min(names)
        raise UsageError(
            f"{fact} {name!r}.",
            "Lines of metrics.jsonl have a value of that name already, and hold one of them.",
            f"choose another name, such as {'my_' + name!r}.",
        )


def _wrong_kind(name: object, value: object, samples: int) -> UsageError:
    if not isinstance(name, str):
        return UsageError(
            f"The task's measure() returned a value under the name {name!r}, an object of type {type(name).__name__}.",
            "Measures are logged and saved by names, which are of type str.",
            "give each measure a str as its key.",
        )
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    return UsageError(
        f"The task's measure() returned {name!r} as an object of type {kind}.",
        "Each measure is a tensor of the task's framework, with one value a sample.",
        f"return a tensor of shape ({samples},), which is neither averaged over the batch nor converted.",
    )


def callbacks_of(task: Task) -> list[Callable[[Any], None]]:
    """What the task adds to a run's callbacks. Raises `UsageError` unless they are functions."""
    callbacks = task.callbacks()
    if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
        raise UsageError(
            f"The task's callbacks() returned {callbacks!r}.",
            "It is to return a list of functions, each of which is called with every event of the run.",
            "return [] for none, or [f] for a function f(event).",
        )
    return list(callbacks)


def require_trainable(depends: bool) -> None:
    """Raise `UsageError` unless the loss `depends` on a weight that is trained: training would change nothing."""
    if not depends:
        raise UsageError(
            "The 'loss' of the task's measure() depends on no weight that is trained.",
            "There is nothing to differentiate, and training would change nothing.",
            "compute it from the model's outputs without detach(), stop_gradient or numpy, and freeze fewer weights.",
        )
