"""A job that cannot be started as described is refused before anything is rendered."""

from __future__ import annotations

from typing import Any

import pytest

from hvdtrain.errors import UsageError
from hvdtrain.launch.hosts.host import Host
from hvdtrain.launch.job_spec import JobSpec

HOSTS = (Host("a", 4), Host("b", 2))


def job(**changes: Any) -> JobSpec:
    return JobSpec(**{"command": ("train",), "np": 4, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"np": 0}, "-np is 0"),
        ({"np": 7, "hosts": HOSTS}, "has 7 workers. Its hosts have 6 slots: a:4, b:2"),
        ({"min_workers": 5, "max_workers": 3}, "--min-workers is 5 and --max-workers 3"),
        ({"min_workers": 5}, "--min-workers is 5"),
        ({"max_workers": 3}, "--max-workers is 3"),
        ({"min_workers": 1, "max_workers": 3}, "starts 4 workers"),
        ({"slots_per_host": 0}, "--slots-per-host is 0"),
        ({"max_restarts": -1}, "--max-restarts is -1"),
        ({"grace": float("nan")}, "--grace is nan"),
        ({"start_timeout": float("inf")}, "--start-timeout is inf"),
        ({"ssh_port": 65_536}, "--ssh-port is 65536"),
        ({"time_limit": 0}, "--time-limit is 0"),
        ({"np": 10_000_000}, "np is 10000000"),
        ({"command": ()}, "no command"),
        ({"command": ("train", "a\nb")}, "line break"),
        ({"python": "-c"}, "interpreter is '-c'"),
        ({"working_dir": "runs"}, "working directory is 'runs'"),
        ({"name": "a b"}, "name is 'a b'"),
        ({"name": "a\n#SBATCH --x"}, "name is"),
        ({"nics": ("eth0;id",)}, "interface is called"),
        ({"nics": ("-x",)}, "interface is called"),
        ({"image": "a b"}, "image is called"),
        ({"gpus_per_host": 2, "slots_per_host": 4}, "runs 4 workers and has 2 GPUs"),
        ({"binding": "cores"}, "did you mean 'core'"),
        ({"binding": "core"}, "is not known"),
        ({"binding": "core", "cores_per_host": 2}, "4 workers and has 2 cores"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        job(**changes)
    assert message in str(refused.value)


def test_a_variables_value_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError) as refused:
        job(env=("API_KEY=hunter2",))
    assert "API_KEY" in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_only_the_hosts_that_get_a_worker_count() -> None:
    assert job(np=4, hosts=HOSTS).used_hosts == HOSTS[:1]
    assert job(np=5, hosts=HOSTS).used_hosts == HOSTS
    assert (job(np=5, hosts=HOSTS).num_hosts, job(np=5, hosts=HOSTS).slots) == (2, 4)


@pytest.mark.parametrize(("np", "slots", "hosts"), [(8, 4, 2), (5, 2, 3), (1, 4, 1), (4, None, 1)])
def test_machines_that_the_launcher_finds(np: int, slots: int | None, hosts: int) -> None:
    assert job(np=np, slots_per_host=slots).num_hosts == hosts


@pytest.mark.parametrize(("cores", "binding", "bound"), [(8, "auto", True), (8, "none", False), (3, "auto", False)])
def test_two_workers_are_never_bound_to_one_core(cores: int, binding: str, bound: bool) -> None:
    assert job(cores_per_host=cores, binding=binding).binds_to_cores is bound
