"""What each launcher would run, word for word.

A change of the text is a change of what runs on clusters: look at the difference. To accept it:

    HVDTRAIN_UPDATE_GOLDEN=1 python -m pytest tests/unit/launch/renderers/test_golden.py
"""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from hvdtrain.launch import horovodrun, kubernetes, lsf, mpirun, pbs, slurm
from hvdtrain.launch.hosts.host import Host
from hvdtrain.launch.job_spec import JobSpec
from hvdtrain.launch.option_groups import FLAVORS
from hvdtrain.launch.pods import KubernetesOptions
from hvdtrain.launch.rendering import LaunchPlan

GOLDEN = Path(__file__).parent / "golden"
SCRIPTS = Path(__file__).parents[4] / "launch"
UPDATE = os.environ.get("HVDTRAIN_UPDATE_GOLDEN") == "1"

COMMAND = ("train", "--data.path", "it's a folder; $HOME", "--max-steps", "3")
UNEVEN = (Host("node1", 4), Host("node2", 2))
HERE = JobSpec(command=COMMAND, np=2, hosts=(Host("localhost", 2),))
PLAIN = JobSpec(command=COMMAND, np=6, hosts=UNEVEN)
FULL = JobSpec(
    command=COMMAND,
    np=6,
    hosts=UNEVEN,
    python="/opt/venv/bin/python",
    name="digits",
    env=("PATH", "API_KEY"),
    nics=("ib0", "eth0"),
    gpus_per_host=4,
    cores_per_host=32,
    ssh_port=2222,
    working_dir="/shared/my digits",
    time_limit=5400,
    allow_root=True,
)
TABLE = JobSpec(command=COMMAND, np=4, hosts=(Host("10.0.0.1", 2, (4, 6)), Host("10.0.0.2", 2, (4, 6))))
MACHINES = JobSpec(command=COMMAND, np=8, slots_per_host=4)
MACHINES_FULL = JobSpec(
    command=(*COMMAND, "--output-dir", "/data/runs"),
    np=7,
    slots_per_host=4,
    name="digits",
    env=("API_KEY",),
    nics=("ib0",),
    gpus_per_host=4,
    cores_per_host=32,
    time_limit=5400,
    max_restarts=2,
    grace=90.5,
)
POD = {"image": "registry.example.com/hvdtrain:1"}


def in_pods(job: JobSpec) -> JobSpec:
    return JobSpec(**{**{name: getattr(job, name) for name in JobSpec.__dataclass_fields__}, **POD})


def plans() -> dict[str, LaunchPlan]:
    without = {"time_limit": None, "allow_root": False, "env": ("PATH",)}
    for_horovodrun = JobSpec(**{**{name: getattr(FULL, name) for name in JobSpec.__dataclass_fields__}, **without})
    found = {
        "horovodrun_here": horovodrun.render(HERE),
        "horovodrun_plain": horovodrun.render(PLAIN),
        "horovodrun_full": horovodrun.render(for_horovodrun),
        "horovodrun_mpi": horovodrun.render(PLAIN, "mpi"),
        "slurm_plain": slurm.render(MACHINES),
        "slurm_full": slurm.render(MACHINES_FULL, slurm.SlurmOptions(partition="gpu", account="digits")),
        "slurm_pmix": slurm.render(MACHINES, slurm.SlurmOptions(inner="pmix")),
        "slurm_mpirun": slurm.render(MACHINES_FULL, slurm.SlurmOptions(inner="mpirun", flavor="openmpi5")),
        "slurm_intel": slurm.render(MACHINES, slurm.SlurmOptions(inner="mpirun", flavor="intel")),
    }
    found |= batch_plans()
    for flavor in FLAVORS:
        found[f"mpirun_{flavor}_here"] = mpirun.render(HERE, flavor)
        found[f"mpirun_{flavor}_plain"] = mpirun.render(PLAIN, flavor)
        found[f"mpirun_{flavor}_full"] = mpirun.render(FULL, flavor)
        found[f"mpirun_{flavor}_rank_table"] = mpirun.render(TABLE, flavor)
        options = KubernetesOptions(flavor=flavor, namespace="train", memory="64Gi", claim="digits")
        found[f"kubernetes_{flavor}"] = kubernetes.render(in_pods(MACHINES_FULL), options)
    found["kubernetes_plain"] = kubernetes.render(in_pods(MACHINES))
    found["kubernetes_train_job"] = kubernetes.render(
        replace(in_pods(MACHINES_FULL), np=8, max_restarts=0, grace=30.0),
        KubernetesOptions(kind="TrainJob", namespace="train", memory="64Gi", claim="digits"),
    )
    return found


def batch_plans() -> dict[str, LaunchPlan]:
    over_mpi = {"inner": "mpirun", "flavor": "openmpi5"}
    even = JobSpec(**{**{name: getattr(MACHINES_FULL, name) for name in JobSpec.__dataclass_fields__}, "np": 8})
    return {
        "pbs_plain": pbs.render(MACHINES),
        "pbs_full": pbs.render(MACHINES_FULL, pbs.PbsOptions(queue="gpu", account="digits", project="p")),
        "pbs_torque": pbs.render(MACHINES_FULL, pbs.PbsOptions(kind="torque", account="digits")),
        "pbs_mpirun": pbs.render(MACHINES_FULL, pbs.PbsOptions(**over_mpi)),
        "pbs_intel": pbs.render(MACHINES, pbs.PbsOptions(inner="mpirun", flavor="intel")),
        "lsf_plain": lsf.render(MACHINES),
        "lsf_full": lsf.render(MACHINES_FULL, lsf.LsfOptions(queue="gpu", project="digits")),
        "lsf_mpirun": lsf.render(MACHINES_FULL, lsf.LsfOptions(**over_mpi)),
        "lsf_jsrun": lsf.render(even, lsf.LsfOptions(inner="jsrun", project="digits")),
    }


PLANS = plans()


@pytest.mark.parametrize("name", PLANS)
def test_the_text_is_the_one_on_record(name: str) -> None:
    path = GOLDEN / f"{name}.sh"
    if UPDATE:
        path.write_text(PLANS[name].describe())
    assert PLANS[name].describe() == path.read_text()


def test_every_record_has_its_plan() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(PLANS)


@pytest.mark.parametrize("name", PLANS)
def test_every_word_survives_a_shell(name: str) -> None:
    assert shlex.split(shlex.join(PLANS[name].argv)) == list(PLANS[name].argv)


def example_scripts() -> dict[str, str]:
    """The ready-to-edit scripts that a launcher prints: eight workers with a GPU each, four to a host."""
    job = {
        "command": ("train", "--output-dir", "runs/digits"),
        "np": 8,
        "name": "digits",
        "gpus_per_host": 4,
        "cores_per_host": 32,
        "working_dir": "/shared/digits",
    }
    on_hosts = {**job, "hosts": (Host("node1", 4), Host("node2", 4)), "nics": ("eth0",)}
    by_scheduler = {"slots_per_host": 4, "max_restarts": 3, "time_limit": 12 * 3600}
    pods = {"command": ("train", "--output-dir", "/data/runs/digits"), "working_dir": None}
    scheduled = JobSpec(**job, **by_scheduler, grace=120.0)
    in_kubernetes = kubernetes.render(
        JobSpec(**{**job, **by_scheduler, **pods}, image="registry.example.com/hvdtrain:latest"),
        KubernetesOptions(memory="128Gi", claim="digits"),
    )
    return {
        "horovodrun_hosts.sh": horovodrun.render(JobSpec(**on_hosts)).describe(),
        "mpirun_hosts.sh": mpirun.render(JobSpec(**on_hosts, env=("PATH",)), "openmpi5").describe(),
        "slurm.sbatch": slurm.render(scheduled).files["digits.sbatch"],
        "digits.pbs": pbs.render(scheduled).files["digits.pbs"],
        "digits.lsf": lsf.render(scheduled).files["digits.lsf"],
        "mpijob.yaml": in_kubernetes.files["digits.yaml"],
    }


def test_the_ready_to_edit_scripts_are_what_the_renderers_print() -> None:
    """Besides those in Python, and the page about all of them."""
    if UPDATE:
        for name, text in example_scripts().items():
            (SCRIPTS / name).write_text(text)
    shipped = {path.name: path.read_text() for path in SCRIPTS.iterdir() if path.suffix not in (".py", ".md")}
    assert shipped == example_scripts()


def test_the_page_names_every_script() -> None:
    page = (SCRIPTS / "README.md").read_text()
    assert [path.name for path in SCRIPTS.iterdir() if path.is_file() and path.name not in page] == ["README.md"]
