"""What workers inherit, and what a restart changes in their command."""

from __future__ import annotations

import pytest

from hvdtrain.errors import UsageError
from hvdtrain.launch.hosts.host import Host, assign_ranks
from hvdtrain.launch.job_spec import JobSpec
from hvdtrain.launch.supervisor.console import Console
from hvdtrain.launch.supervisor.diagnosis import JobOutcome
from hvdtrain.launch.supervisor.restarts import option_value, run_with_restarts, trains, with_run_folder
from hvdtrain.launch.supervisor.signals import SignalInbox
from hvdtrain.launch.worker_environment import worker_environment
from hvdtrain.topology import detect_topology

PYTHON = ("python", "-m", "hvdtrain")


def environment(rank: int, np: int, inherited: dict[str, str]) -> dict[str, str]:
    place = assign_ranks([Host("here", np)], np)[rank]
    return worker_environment(inherited, place, {"ADDR": "x"}, "lo", "token", 0)


def test_hvdtrain_and_horovod_read_the_same_place() -> None:
    topology = detect_topology(environment(2, 3, {"OMPI_COMM_WORLD_RANK": "0", "RANK": "7", "PMIX_RANK": "1"}))
    assert (topology.rank, topology.size, topology.local_rank, topology.local_size) == (2, 3, 2, 3)
    assert (topology.node_rank, topology.num_nodes) == (0, 1)
    assert topology.launcher == "hvdtrain launch"


def test_what_the_user_set_stays_and_other_launchers_ranks_go() -> None:
    inherited = {"OMP_NUM_THREADS": "7", "HOROVOD_CYCLE_TIME": "5", "PMI_RANK": "1", "WORLD_SIZE": "9", "HOME": "/h"}
    made = environment(0, 2, inherited)
    assert {name: made.get(name) for name in inherited} == {**inherited, "PMI_RANK": None, "WORLD_SIZE": None}
    assert int(made["MKL_NUM_THREADS"]) >= 1
    assert made["HOROVOD_CPU_OPERATIONS"] == "gloo"


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (PYTHON, True),
        ((*PYTHON, "train", "--epochs", "3"), True),
        (("python", "-u", "-m", "hvdtrain", "--epochs", "3"), True),
        (("/usr/bin/hvdtrain", "train"), True),
        (("python", "/usr/bin/hvdtrain", "train"), True),
        ((*PYTHON, "shard", "verify"), False),
        (("python", "script.py", "-m", "hvdtrain"), False),
        (("sleep", "5"), False),
    ],
)
def test_what_trains(command: tuple[str, ...], answer: bool) -> None:
    assert trains(command) is answer


def test_flags_are_found_in_every_spelling() -> None:
    assert option_value(("--output-dir", "a"), "output-dir") == "a"
    assert option_value(("--output_dir=a", "--output-dir", "b"), "output-dir") == "b"
    assert option_value(("--output-dirs", "a"), "output-dir") is None


def test_all_starts_share_one_run_folder() -> None:
    folder = option_value(with_run_folder(PYTHON, 1), "output-dir")
    assert folder is not None
    assert folder.startswith("runs/")
    named = (*PYTHON, "--output-dir", "a")
    assert with_run_folder(named, 1) == named
    with pytest.raises(UsageError, match="--config but no --output-dir"):
        with_run_folder((*PYTHON, "--config", "a.yaml"), 1)


def test_ranks_fill_one_host_after_the_other() -> None:
    """As Horovod's own launcher numbers them: horovod/runner/common/util/hosts.py, get_host_assignments."""
    places = assign_ranks([Host("a", 2), Host("b", 1), Host("c", 3), Host("d", 9)], 5)
    assert [(p.rank, p.host, p.local_rank, p.local_size, p.cross_rank, p.cross_size) for p in places] == [
        (0, "a", 0, 2, 0, 3),
        (1, "a", 1, 2, 0, 2),
        (2, "b", 0, 1, 1, 3),
        (3, "c", 0, 2, 2, 3),
        (4, "c", 1, 2, 1, 2),
    ]
    assert {place.size for place in places} == {5}


@pytest.mark.parametrize(("np", "most", "is_warned"), [(1300, None, False), (1301, None, True), (2, 4000, True)])
def test_more_workers_than_can_meet_over_gloo_are_warned_of(
    np: int, most: int | None, is_warned: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    job = JobSpec(command=("train",), np=np, max_workers=most, max_restarts=1)
    with SignalInbox() as inbox:
        assert run_with_restarts(lambda *_: JobOutcome(0), job, Console(inbox), inbox) == 0
    said = capfd.readouterr().err
    assert said.count("workers are to meet over Gloo") == said.count("HINT: start so many by MPI") == is_warned
