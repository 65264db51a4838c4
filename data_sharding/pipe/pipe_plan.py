"""Files distributed over channels, one channel per worker, so that no two workers ever read one FIFO."""

import hashlib
import heapq
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, cast

from data_sharding.checks import at_least, one_of, whole
from data_sharding.errors import PlanError
from data_sharding.pipe.parsers import Framing

MAX_CHANNELS: Final = 20
"""Input channels of one SageMaker training job: API_CreateTrainingJob, InputDataConfig."""

Distribution = Literal["divided", "sharded-by-s3-key"]

_CHANNEL_NAME: Final = re.compile(r"[A-Za-z0-9.\-_]{1,64}")  # API_Channel, ChannelName


@dataclass(frozen=True)
class PipeFile:
    """One object: name (a path, or the key below the plan's prefix), size in bytes, records if they were counted."""

    name: str
    size: int
    records: int | None = None


@dataclass(frozen=True)
class PipeChannel:
    """What one channel delivers in an epoch, summed over all hosts."""

    name: str
    files: tuple[PipeFile, ...]

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def records(self) -> int | None:
        """Sum of the files' records; None if those of some file are not known."""
        counts = _all_known(file.records for file in self.files)
        return None if counts is None else sum(counts)


@dataclass(frozen=True)
class PipePlan:
    """Which channel each worker reads, and what will arrive there; errors as `make_plan`.

    Attributes:
        prefix: what comes before every file's name, e.g. "s3://bucket/folder/".
        hosts, workers_per_host: the job for which the channels were cut.
        distribution: "divided": a channel for each worker of the job, replicated to all hosts (each worker opens only
            its own). "sharded-by-s3-key": a channel for each worker of a host, whose files the service divides over
            the hosts, so that nobody knows before an epoch what arrives where.
        channels: of `divided` in the order of ranks, else in that of local ranks.
    """

    prefix: str
    framing: Framing
    hosts: int
    workers_per_host: int
    distribution: Distribution
    channels: tuple[PipeChannel, ...]

    def __post_init__(self) -> None:
        for name in ("hosts", "workers_per_host"):
            object.__setattr__(self, name, whole(name, getattr(self, name)))
        expected = _channel_count(self.hosts, self.workers_per_host, self.distribution)
        if len(self.channels) != expected:
            fact = f"There are {len(self.channels)} channels for {self.hosts} hosts of {self.workers_per_host} workers."
            raise PlanError(fact, f"It should have {expected}.", "make the plan again.")
        for channel in self.channels:
            check_channel_name(channel.name)
        _check_files([file for channel in self.channels for file in channel.files], expected)

    @property
    def size(self) -> int:
        return self.hosts * self.workers_per_host

    def channel(self, rank: int, local_rank: int) -> PipeChannel:
        """The channel of one worker. Raises PlanError if the plan has none for it."""
        index = rank if self.distribution == "divided" else local_rank
        if not 0 <= index < len(self.channels):
            raise PlanError(
                f"Rank {rank} (local rank {local_rank}) asks for channel {index} of {len(self.channels)}.",
                "Two workers must not share a channel.",
                f"start {self.workers_per_host} workers on each of {self.hosts} hosts, or make another plan.",
            )
        return self.channels[index]

    @property
    def records(self) -> int | None:
        """Records of an epoch over all workers; None if those of some file are not known."""
        counts = _all_known(channel.records for channel in self.channels)
        return None if counts is None else sum(counts)

    def rank_records(self) -> tuple[int, ...] | None:
        """Records that arrive at each rank in every epoch; None where that cannot be known beforehand."""
        if self.distribution == "sharded-by-s3-key" and self.hosts > 1:
            return None
        return _all_known(channel.records for channel in self.channels)

    @property
    def fingerprint(self) -> str:
        """Hex SHA-256 of all that the plan says."""
        return hashlib.sha256(repr(("data_sharding.pipe_plan/1", self)).encode()).hexdigest()


def make_plan(
    files: Sequence[PipeFile],
    *,
    workers_per_host: int,
    hosts: int = 1,
    distribution: Distribution = "divided",
    prefix: str = "",
    framing: Framing = "tfrecord",
    channel: str = "train",
) -> PipePlan:
    """Deal files over the channels `<channel>-0`, `<channel>-1`, …: largest first, each to the smallest channel so far.

    That is Graham's LPT rule (Bounds on Multiprocessing Timing Anomalies, 1969): the largest channel holds at most 4/3
    of the bytes that it would hold in the best division. A pure function of its arguments, whatever the files' order.
    Raises PlanError.
    """
    count = _channel_count(hosts, workers_per_host, distribution)
    dealt: list[list[PipeFile]] = [[] for _ in range(count)]
    smallest = [(0, 0, index) for index in range(count)]
    for file in sorted(files, key=lambda file: (-file.size, file.name)):
        size, number, index = heapq.heappop(smallest)
        dealt[index].append(file)
        heapq.heappush(smallest, (size + file.size, number + 1, index))
    channels = tuple(
        PipeChannel(f"{channel}-{index}", tuple(sorted(part, key=lambda file: file.name)))
        for index, part in enumerate(dealt)
    )
    return PipePlan(prefix, framing, hosts, workers_per_host, distribution, channels)


def _all_known(counts: Iterable[int | None]) -> tuple[int, ...] | None:
    known = tuple(counts)
    return None if None in known else cast(tuple[int, ...], known)


def _channel_count(hosts: int, workers_per_host: int, distribution: Distribution) -> int:
    """How many channels a job needs; refuses a job that cannot have them."""
    one_of("distribution", distribution, Distribution)
    at_least(1, "hosts", hosts, "A job has at least one host.")
    at_least(1, "workers_per_host", workers_per_host, "A host has at least one worker.")
    channels = workers_per_host * (hosts if distribution == "divided" else 1)
    if channels > MAX_CHANNELS:
        hint = "let the service divide the files, a channel a local worker (--distribution sharded-by-s3-key)."
        raise PlanError(
            f"{hosts} hosts of {workers_per_host} workers would take {channels} channels.",
            f"A training job has at most {MAX_CHANNELS}, and workers must not share one.",
            hint if distribution == "divided" else f"start {MAX_CHANNELS} workers a host or fewer.",
        )
    return channels


def _check_files(files: Sequence[PipeFile], channels: int) -> None:
    if len(files) < channels:
        fact = f"{len(files)} files were to be distributed over {channels} channels."
        conflict = "Some worker would have nothing to read."
        raise PlanError(fact, conflict, f"write the data to {channels} files or more, in one size if you can.")
    name, times = Counter(file.name for file in files).most_common(1)[0]
    if times > 1:
        raise PlanError(f"{name} is named twice.", "Its records would be read twice.", "name it once.")
    for file in files:
        if file.size < 1 or (file.records is not None and file.records < 1):
            raise PlanError(
                f"{file.name} holds no record.",
                "A data file without one is most often one whose writing was cut short.",
                "write it again, or leave it out.",
            )


def check_channel_name(name: str) -> None:
    """Raise PlanError for a name that SageMaker does not allow."""
    if not _CHANNEL_NAME.fullmatch(name):
        fact = f"The channel name {name!r} is not allowed."
        conflict = "It becomes part of a path, and of the job's description."
        raise PlanError(fact, conflict, "use up to 64 letters, digits, dots, hyphens and underscores.")
