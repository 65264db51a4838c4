"""Workers as a grid: each row is a pipeline, one replica of the model whose stages are on consecutive ranks."""

from dataclasses import dataclass, replace

from hvdtrain.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class Grid:
    """A worker among all, of which `stages` form a replica; 1: each worker has a whole model."""

    topology: Topology
    stages: int = 1

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
