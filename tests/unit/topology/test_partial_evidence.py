"""Never "rank 0 of 1" by guess: what is incomplete, no number or contradictory is refused by name."""

from __future__ import annotations

import pytest

from hvdtrain.errors import UsageError
from hvdtrain.topology import detect_topology, explain

STEP = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}


@pytest.mark.parametrize(
    ("env", "platform", "found", "missing"),
    [
        ({"HOROVOD_RANK": "1"}, "Horovod", "HOROVOD_RANK=1", "HOROVOD_SIZE"),
        ({"HOROVOD_SIZE": "4"}, "Horovod", "HOROVOD_SIZE=4", "HOROVOD_RANK"),
        ({"HOROVOD_LOCAL_RANK": "1"}, "Horovod", "HOROVOD_LOCAL_RANK=1", "HOROVOD_RANK"),
        ({"OMPI_COMM_WORLD_RANK": "1"}, "Open MPI", "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE"),
        ({"MV2_COMM_WORLD_SIZE": "4"}, "MVAPICH", "MV2_COMM_WORLD_SIZE=4", "MV2_COMM_WORLD_RANK"),
        ({"PMI_RANK": "1"}, "PMI", "PMI_RANK=1", "PMI_SIZE"),
        ({"PMIX_RANK": "1"}, "PMIx", "PMIX_RANK=1", "PMIX_SIZE"),
        ({"RANK": "1"}, "torchrun", "RANK=1", "WORLD_SIZE"),
        ({"WORLD_SIZE": "4"}, "torchrun", "WORLD_SIZE=4", "RANK"),
        ({"LOCAL_RANK": "1"}, "torchrun", "LOCAL_RANK=1", "RANK"),
        (
            {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1"},
            "Slurm",
            "SLURM_PROCID=1, SLURM_STEP_ID=0",
            "SLURM_STEP_NUM_TASKS or SLURM_NTASKS or SLURM_NPROCS",
        ),
        (STEP | {"WORLD_SIZE": "8"}, "torchrun", "WORLD_SIZE=8", "RANK"),
        (STEP | {"PMIX_RANK": "0"}, "PMIx", "PMIX_RANK=0", "PMIX_SIZE"),
    ],
)
def test_partial_evidence_names_what_is_there_and_what_is_missing(
    env: dict[str, str], platform: str, found: str, missing: str
) -> None:
    with pytest.raises(UsageError) as caught:
        detect_topology(env)
    assert caught.value.fact == f"{platform} variables are set ({found}), but not {missing}."
    assert missing in caught.value.hint
    stopped = next(item for item in explain(env) if item.platform == platform)
    assert (stopped.used, stopped.why) == (False, f"stops here: {caught.value.fact} {caught.value.conflict}")


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"HOROVOD_CYCLE_TIME": "5", "HOROVOD_HOSTNAME": "n1", "HOROVOD_CONTROLLER": "gloo"},
        {"MASTER_ADDR": "n1", "MASTER_PORT": "29500"},
        {"OMPI_MCA_btl": "tcp,self", "PMIX_MCA_gds": "hash", "OMPI_VERSION": "5.0"},
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8"},
        {"SLURM_STEP_ID": "0"},
    ],
)
def test_variables_that_name_no_place_are_no_evidence(env: dict[str, str]) -> None:
    t = detect_topology(env)
    assert (t.rank, t.size, t.launcher) == (0, 1, "single")
    assert t.source["size"].startswith("default: ")


@pytest.mark.parametrize("text", ["", " 1", "-1", "+1", "1.0", "1_0", "0x1", "one", "٣", "1234567890"])
@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"])
def test_what_is_no_whole_number_is_refused_by_name(variable: str, text: str) -> None:
    env = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", variable: text}
    with pytest.raises(UsageError) as caught:
        detect_topology(env)
    assert caught.value.fact == f"{variable} is {text!r}."


@pytest.mark.parametrize(
    ("changed", "fact"),
    [
        ({"RANK": "4"}, "rank is 4 (RANK=4)."),
        ({"WORLD_SIZE": "0"}, "size is 0 (WORLD_SIZE=0)."),
        ({"LOCAL_RANK": "2"}, "local_rank is 2 (LOCAL_RANK=2)."),
        ({"LOCAL_WORLD_SIZE": "0"}, "local_size is 0 (LOCAL_WORLD_SIZE=0)."),
        ({"GROUP_RANK": "2"}, "node_rank is 2 (GROUP_RANK=2)."),
        ({"GROUP_WORLD_SIZE": "4"}, "local_size is 2 (LOCAL_WORLD_SIZE=2)."),
        ({"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"}, "local_size is 2 (LOCAL_WORLD_SIZE=2)."),
        ({"LOCAL_WORLD_SIZE": "4"}, "local_size is 4 (LOCAL_WORLD_SIZE=4)."),
    ],
)
def test_contradictions_are_refused_by_name(changed: dict[str, str], fact: str) -> None:
    env = {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
    }
    assert detect_topology(env).source["rank"] == "RANK=3"
    with pytest.raises(UsageError) as caught:
        detect_topology(env | changed)
    assert caught.value.fact == fact


@pytest.mark.parametrize("variable", ["SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"])
def test_a_malformed_list_of_slurm_is_refused_by_name(variable: str) -> None:
    env = STEP | {"SLURM_NODEID": "0", "SLURM_STEP_NUM_NODES": "1", variable: "n[1-"}
    with pytest.raises(UsageError, match=f"{variable} is 'n\\[1-'"):
        detect_topology(env)
