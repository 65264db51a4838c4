"""Channels: what `fit` takes for them, where the data of each are, how they are delivered, and what names mean."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from urllib.parse import unquote, urlsplit

from hvdtrain.errors import UsageError
from hvdtrain.launch.job_spec import require_choice
from hvdtrain.launch.sagemaker.pipe_plan import PendingPipePlan
from hvdtrain.launch.sagemaker.spec_checks import INPUT_MODES

DEFAULT_CHANNEL = "train"  # the channel of data that were given without a name
CHANNEL_NAME = re.compile(r"[A-Za-z0-9.\-_]{1,64}")  # API_Channel, ChannelName
NUMBERED_NAME = re.compile(r"(.+)-(\d+)")
"""The name of a Pipe channel: what it brings, and the number of the worker that reads it."""

_CHOICES = {
    "distribution": ("FullyReplicated", "ShardedByS3Key"),
    "compression": ("None", "Gzip"),
    "record_wrapping": ("None", "RecordIO"),
    "s3_data_type": ("S3Prefix", "ManifestFile", "AugmentedManifestFile"),
    "input_mode": INPUT_MODES,
}
_MAX_SEED = 2**63 - 1


@dataclass(frozen=True)
class TrainingInput:
    """One channel, in the words of SageMaker's SDK.

    Args:
        s3_data: s3:// URI; in local mode a path or file:// URI. `{local_rank}` in it: one channel for each local rank.
        distribution: whether every machine gets all objects, or its share of them; None: its share in mode Pipe, all in
            modes File and FastFile.
        compression: "Gzip": SageMaker unpacks; mode Pipe only.
        content_type: MIME type.
        record_wrapping: "RecordIO": SageMaker wraps each object as one record.
        s3_data_type: what `s3_data` names: the beginning of keys, or a list of objects.
        input_mode: None: the job's.
        attribute_names: of an AugmentedManifestFile.
        shuffle_seed: SageMaker gives the objects in another order in every epoch, which follows from this number.

    Raises:
        UsageError: a choice that there is not.
    """

    s3_data: str
    distribution: str | None = None
    compression: str | None = None
    content_type: str | None = None
    record_wrapping: str | None = None
    s3_data_type: str = "S3Prefix"
    input_mode: str | None = None
    attribute_names: tuple[str, ...] = ()
    shuffle_seed: int | None = None

    def __post_init__(self) -> None:
        seed = self.shuffle_seed
        for name, is_right in {
            "s3_data": isinstance(self.s3_data, str) and self.s3_data,
            "shuffle_seed": isinstance(seed, int | None) and not isinstance(seed, bool),
            "attribute_names": isinstance(self.attribute_names, tuple | list),
        }.items():
            if not is_right:
                value = getattr(self, name)
                raise UsageError(
                    f"The {name} of a TrainingInput is {str(value)[:80]!r}, of type {type(value).__name__}.",
                    "SageMaker takes no such value there.",
                    "give a URI as s3_data, a whole number as shuffle_seed, a tuple of names as attribute_names.",
                )
        for name, valid in _CHOICES.items():
            value = getattr(self, name)
            if value is not None:
                require_choice(f"The {name} of {self.s3_data[:200]} is {value!r}.", value, valid)
        if seed is not None and not 0 <= seed <= _MAX_SEED:
            raise UsageError(f"The shuffle seed is {seed}.", "It is from 0 to 2^63 - 1.", "try 42.")


@dataclass(frozen=True)
class PipePlanInput:
    """The channels of a plan that `hvdtrain shard pipe-plan` wrote into a folder; `shuffle_seed` as above."""

    folder: str
    shuffle_seed: int | None = None


@dataclass(frozen=True)
class Channel:
    """One channel of a training job."""

    name: str
    source: TrainingInput  # where its data are; `input_mode` and `distribution` are set
    # a file of this machine that has to be at `source.s3_data` before the job starts; None: nothing
    upload: Path | None = None
    pending_plan: PendingPipePlan | None = None  # how that file is to be made; None: it is there

    @property
    def data_location(self) -> str:
        """Where its data are, as the user named it."""
        return self.source.s3_data if self.pending_plan is None else self.pending_plan.location


Input = str | PathLike[str] | TrainingInput | PipePlanInput
Inputs = Input | Mapping[str, Input] | None


def named_inputs(inputs: Inputs) -> dict[str, TrainingInput | PipePlanInput]:
    """`fit`'s argument, every channel under its name; UsageError: a name or a value that no channel can have."""
    if inputs is None:
        return {}
    named = dict(inputs) if isinstance(inputs, Mapping) else {DEFAULT_CHANNEL: inputs}
    for name in named:
        if not isinstance(name, str) or not CHANNEL_NAME.fullmatch(name):
            raise UsageError(
                f"A channel is called {str(name)[:80]!r}.",
                "Its name becomes part of a path, and of the job's description.",
                "use up to 64 letters, digits, dots, hyphens and underscores.",
            )
    return {name: _input(name, value) for name, value in named.items()}


def local_path(location: str) -> Path:
    """The path of a file:// URI, or of what is a path already; absolute."""
    path = unquote(urlsplit(location).path) if location.startswith("file://") else location
    return Path(path).expanduser().absolute()


def _input(name: str, value: object) -> TrainingInput | PipePlanInput:
    if isinstance(value, TrainingInput | PipePlanInput):
        return value
    if isinstance(value, str | PathLike) and fspath(value):
        return TrainingInput(str(fspath(value)))
    raise UsageError(
        f"Channel {name} is {str(value)[:80]!r}, of type {type(value).__name__}.",
        "This is not a data location.",
        "give a URI, a path, a TrainingInput or a PipePlanInput.",
    )
