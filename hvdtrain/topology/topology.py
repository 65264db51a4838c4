"""A worker among the others, their places for Horovod, and their grid where models are in stages."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

ASSUMED = "assumed"  # how `Topology.source` begins for a fact that nobody stated; Horovod's own answer replaces it
FACTS = ("rank", "size", "local_rank", "local_size", "node_rank", "num_nodes")


@dataclass(frozen=True, slots=True)
class Topology:
    """One worker among the others. Raises ValueError: the numbers contradict each other."""

    rank: int  # this worker's number, from 0, among all `size` workers
    size: int
    local_rank: int  # the same among the `local_size` workers of this node
    local_size: int
    node_rank: int = 0  # the same for this worker's node among the `num_nodes` nodes
    num_nodes: int = 1
    hosts: tuple[str, ...] = ()  # names of the nodes, where the launcher says them
    # "horovodrun", "hvdtrain launch", "mpirun", "pmi", "jsrun", "torchrun", "slurm" or "single"
    launcher: str = "single"
    # for each fact what decided it: `VARIABLE=value`, `derived: …` or `assumed: …`
    source: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number, count in (("rank", "size"), ("local_rank", "local_size"), ("node_rank", "num_nodes")):
            if not 0 <= getattr(self, number) < getattr(self, count):
                raise ValueError(f"{number} {getattr(self, number)} is not below {count} {getattr(self, count)}")
        if self.local_size > self.size or self.num_nodes > self.size:
            raise ValueError(
                f"size {self.size} is less than local_size {self.local_size} or num_nodes {self.num_nodes}"
            )

    @classmethod
    def single(cls) -> Self:
        return cls(0, 1, 0, 1, source=dict.fromkeys(FACTS, "default: no launcher's variables were found"))

    @property
    def is_root(self) -> bool:
        """Whether this is the worker that writes and prints for all."""
        return self.rank == 0

    @property
    def is_distributed(self) -> bool:
        return self.size > 1

    def disagreement(self, rank: int, size: int, local_rank: int, local_size: int) -> str | None:
        """Half a sentence on the first fact that Horovod, after its init, states differently; None where it agrees.

        Launcher and Horovod may number the workers of a node in another order (Open MPI 5 does by default), which does
        no harm as long as each has a number of its own; so a local rank counts only if it lies outside the node.
        """
        answers = {"rank": rank, "size": size, "local_size": local_size}
        if not 0 <= local_rank < self.local_size:
            answers["local_rank"] = local_rank
        for name, answer in answers.items():
            if getattr(self, name) != answer and not self._is_assumed(name):
                return f"{self.source.get(name, name)} says {name} {getattr(self, name)}, Horovod says {answer}"
        return None

    def completed(self, local_rank: int, local_size: int) -> "Topology":
        """The same with Horovod's local facts in place of assumed ones."""
        if not self._is_assumed("local_rank") and not self._is_assumed("local_size"):
            return self
        stated = dict.fromkeys(("local_rank", "local_size"), "Horovod's own answer")
        return replace(self, local_rank=local_rank, local_size=local_size, source={**self.source, **stated})

    def _is_assumed(self, name: str) -> bool:
        return self.source.get(name, "").startswith(ASSUMED)


@dataclass(frozen=True, slots=True)
class Grid:
    """Workers as a grid: each row is a pipeline, one replica of the model whose stages are on consecutive ranks."""

    topology: Topology  # a worker among all
    stages: int = 1  # workers that form a replica; 1: each worker has a whole model

    def __post_init__(self) -> None:
        if self.stages < 1 or self.topology.size % self.stages:
            raise ValueError(f"{self.topology.size} workers cannot form pipelines of {self.stages}")

    @property
    def stage(self) -> int:
        """From 0. Stages of a replica have consecutive ranks, so that they are on one host if they fit."""
        return self.topology.rank % self.stages

    @property
    def replicas(self) -> int:
        return self.topology.size // self.stages

    @property
    def is_last(self) -> bool:
        return self.stage == self.stages - 1

    @property
    def stage_ranks(self) -> tuple[int, ...]:
        """The ranks that have the same stage, of all replicas."""
        return tuple(range(self.stage, self.topology.size, self.stages))

    def data_topology(self) -> Topology:
        """This worker's replica among all replicas, which share the records of each step."""
        if self.stages == 1:
            return self.topology
        return replace(
            self.topology,
            rank=self.topology.rank // self.stages,
            size=self.replicas,
            local_rank=0,
            local_size=1,
            node_rank=0,
            num_nodes=1,
        )


@dataclass(frozen=True, slots=True)
class RankAssignment:
    """One worker among the others, as Horovod counts: cross rank and size count the hosts with this local rank."""

    rank: int  # among all workers
    size: int  # number of all workers
    local_rank: int  # among those of its host
    local_size: int  # number of those
    cross_rank: int  # among those of other hosts with the same local rank
    cross_size: int  # number of those
    host: str  # the name by which Horovod tells hosts apart

    @property
    def variables(self) -> dict[str, str]:
        numbers = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
        named = {f"HOROVOD_{name.upper()}": str(getattr(self, name)) for name in numbers}
        return {**named, "HOROVOD_HOSTNAME": self.host}


def assign_places(hosts: Sequence[str]) -> list[RankAssignment]:
    """The places of workers whose hosts are given in the order of their ranks."""
    sizes = Counter(hosts)  # in the order of the first worker of each host
    # local rank → the hosts that have it, each with its number among them
    sides: dict[int, dict[str, int]] = {}
    for host, workers in sizes.items():
        for local_rank in range(workers):
            alike = sides.setdefault(local_rank, {})
            alike[host] = len(alike)
    seen: Counter[str] = Counter()
    places: list[RankAssignment] = []
    for rank, host in enumerate(hosts):
        local_rank = seen[host]
        seen[host] += 1
        alike = sides[local_rank]
        places.append(RankAssignment(rank, len(hosts), local_rank, sizes[host], alike[host], len(alike), host))
    return places
