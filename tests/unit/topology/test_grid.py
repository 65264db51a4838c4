"""Pipelines of workers: each is in one, and a replica's workers are given the same records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.topology import Topology
from hvdtrain.topology.topology import Grid


@given(stages=st.integers(1, 5), replicas=st.integers(1, 5))
def test_each_stage_of_each_replica_has_one_worker(stages: int, replicas: int) -> None:
    size = stages * replicas
    grids = [Grid(Topology(rank, size, 0, 1, rank, size), stages) for rank in range(size)]
    placed = {(grid.data_topology().rank, grid.stage) for grid in grids}
    assert placed == {(replica, stage) for replica in range(replicas) for stage in range(stages)}
    for grid in grids:
        assert grid.data_topology().size == grid.replicas == replicas
        assert grid.topology.rank in grid.stage_ranks
        assert {grids[rank].stage for rank in grid.stage_ranks} == {grid.stage}
        assert grid.is_last == (grid.stage == stages - 1)


def test_workers_that_do_not_fit_into_pipelines_are_an_error() -> None:
    with pytest.raises(ValueError, match="5 workers cannot form pipelines of 2"):
        Grid(Topology(0, 5, 0, 5), 2)
