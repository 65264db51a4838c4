"""torchrun's variables for scripts that read them, under launchers that have others."""

from __future__ import annotations

import pytest

from hvdtrain.topology import detect_topology
from hvdtrain.torch.rank_variables import set_rank_variables

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
ADDED = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
HOROVODRUN = {"HOROVOD_RANK": "3", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "2"}
SLURM = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_STEP_ID": "0"}


@pytest.mark.parametrize(
    ("env", "added"),
    [
        (OPEN_MPI, ADDED),
        (HOROVODRUN, ADDED),
        (HOROVODRUN | {"HOROVOD_ELASTIC": "1"}, {}),  # ranks change
        ({"HOROVOD_RANK": "3", "HOROVOD_SIZE": "4"}, {"RANK": "3", "WORLD_SIZE": "4"}),
        (OPEN_MPI | {"LOCAL_RANK": "7"}, ADDED | {"LOCAL_RANK": "7"}),
        (SLURM, {}),
        (ADDED, {}),
        ({"HOROVOD_RANK": "3"}, {}),  # init() refuses it
        ({}, {}),
    ],
    ids=["mpirun", "horovodrun", "elastic", "without local", "set before", "slurm", "torchrun", "not whole", "single"],
)
def test_missing_variables_are_added(env: dict[str, str], added: dict[str, str]) -> None:
    changed = dict(env)
    set_rank_variables(changed)
    assert changed == env | added


@pytest.mark.parametrize("env", [OPEN_MPI, HOROVODRUN], ids=["mpirun", "horovodrun"])
def test_the_launcher_stays_the_one_that_is_found(env: dict[str, str]) -> None:
    changed = dict(env)
    set_rank_variables(changed)
    assert detect_topology(changed) == detect_topology(env)
