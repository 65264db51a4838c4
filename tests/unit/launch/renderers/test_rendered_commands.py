"""What is printed does what is run: bash executes it with stand-ins for the programs of clusters."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.errors import UsageError
from hvdtrain.launch import horovodrun, kubernetes, lsf, mpirun, pbs, slurm
from hvdtrain.launch.execute import write_files
from hvdtrain.launch.hosts.host import Host
from hvdtrain.launch.job_spec import JobSpec
from hvdtrain.launch.mpirun import flavor_of
from hvdtrain.launch.pods import KubernetesOptions
from hvdtrain.launch.rendering import LaunchPlan, wrap_command
from hvdtrain.launch.train_job import train_job

SECONDS = 60
HOSTS = (Host("node1", 2), Host("node2", 2))
AWKWARD = ("train", "--data.path", 'it\'s $HOME `id` "x" \\ ;|&*?[]{}~#!', "--name=", "", "é", "-m", "hvdtrain")
CANARY = "canary-b7c1"

WITNESS = """#!{python}
import json, os, sys
with open(os.environ["HVDTRAIN_WITNESS"], "a") as file:
    file.write(json.dumps([sys.argv, os.getcwd(), dict(os.environ)]) + "\\n")
sys.exit(int(os.environ.get("HVDTRAIN_WITNESS_CODE", "0")))
"""


@pytest.fixture
def witness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file to which programs of a cluster, first on PATH, write how they were called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("mpirun", "horovodrun", "sbatch", "srun", "scontrol", "kubectl", "qsub", "bsub"):
        (folder / name).write_text(WITNESS.format(python=sys.executable))
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HVDTRAIN_WITNESS", str(tmp_path / "calls"))
    monkeypatch.setenv("SOME_SECRET", CANARY)
    return tmp_path / "calls"


def calls(witness: Path) -> list[tuple[list[str], str, dict[str, str]]]:
    return [tuple(json.loads(line)) for line in witness.read_text().splitlines()]  # type: ignore[misc]


def bash(script: str, folder: Path, **variables: str) -> int:
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env={**os.environ, **variables}, timeout=SECONDS, check=False
    )
    return done.returncode


def job(**changes: Any) -> JobSpec:
    return JobSpec(**{"command": AWKWARD, "np": 4, "hosts": HOSTS, **changes})


def plans(folder: Path) -> list[LaunchPlan]:
    there = folder / "it's here"
    there.mkdir()
    return [
        horovodrun.render(job(working_dir=str(there), nics=("eth0",))),
        *(
            mpirun.render(job(env=("PATH",), cores_per_host=4, working_dir=str(there)), flavor)
            for flavor in ("openmpi4", "openmpi5", "mpich", "intel")
        ),
        slurm.render(job(hosts=())),
        pbs.render(job(hosts=())),
        lsf.render(job(hosts=())),
        kubernetes.render(job(hosts=(), image="a/b:1", env=("SOME_SECRET",))),
    ]


def test_the_printed_script_runs_the_very_command(tmp_path: Path, witness: Path) -> None:
    for number, plan in enumerate(plans(tmp_path)):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert bash(plan.describe(), folder) == 0
        argv, cwd, env = calls(witness)[-1]
        assert (Path(argv[0]).name, argv[1:]) == (plan.argv[0], list(plan.argv[1:]))
        assert cwd == (plan.working_dir or str(folder))
        assert {path.name: path.read_text() for path in folder.iterdir()} == dict(plan.files)
        expected = plan.environment(os.environ)
        changing = {"_", "PWD", "OLDPWD", "SHLVL", "LC_CTYPE"}  # bash's own, and what Python adds under LANG=C
        assert {k: v for k, v in env.items() if k not in changing} == {
            k: v for k, v in expected.items() if k not in changing
        }


def test_no_value_of_a_variable_is_printed_or_written(tmp_path: Path, witness: Path) -> None:
    for plan in plans(tmp_path):
        assert CANARY not in plan.describe()
    assert not witness.exists()


def test_horovodrun_never_sees_what_it_would_show_to_everybody(tmp_path: Path, witness: Path) -> None:
    assert bash(horovodrun.render(job()).describe(), tmp_path) == 0
    assert CANARY not in calls(witness)[0][2].values()
    with pytest.raises(UsageError, match="looks like a secret"):
        horovodrun.render(job(env=("SOME_SECRET",)))
    horovodrun.render(job(env=("TOKENIZERS_PARALLELISM",)))


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\n\r")), min_size=1, max_size=6))
def test_a_wrapped_command_is_the_same_words(words: list[str]) -> None:
    argv = ("program", *words, "python", "-m", "hvdtrain", *words)
    printed = "printf '%s\\0' " + wrap_command(argv)
    done = subprocess.run(["bash", "-c", printed], capture_output=True, timeout=SECONDS, check=True)
    assert done.stdout.decode().split("\0")[:-1] == list(argv)


def sbatch_script(**changes: Any) -> str:
    plan = slurm.render(job(hosts=(), **changes))
    return plan.files["hvdtrain.sbatch"]


@pytest.mark.parametrize(
    "ends", [[(0, False)], [(2, False)], [(1, True), (75, True), (137, True), (75, True), (75, True), (1, False)]]
)
def test_a_slurm_job_is_started_again_after_two_failures_and_any_number_of_stops(
    ends: list[tuple[int, bool]], tmp_path: Path, witness: Path
) -> None:
    expected = []
    for code, requeued in ends:
        variables = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "a b", "HVDTRAIN_WITNESS_CODE": str(code)}
        assert bash(sbatch_script(max_restarts=2), tmp_path, **variables) == code
        expected += ["srun", "scontrol"] if requeued else ["srun"]
        assert [Path(argv[0]).name for argv, _, _ in calls(witness)] == expected
    assert all(argv[1:] == ["requeue", "7"] for argv, _, _ in calls(witness) if Path(argv[0]).name == "scontrol")


def test_each_start_of_a_slurm_job_continues_in_one_run_folder(tmp_path: Path, witness: Path) -> None:
    assert bash(sbatch_script(), tmp_path, SLURM_JOB_ID="7") == 0
    argv = calls(witness)[0][0]
    assert argv[-2:] == ["--output-dir", "runs/hvdtrain-7"]
    assert argv[argv.index("python") :][:-2] == ["python", "-m", "hvdtrain", *AWKWARD]


def test_a_slurm_job_without_a_run_folder_never_starts_twice() -> None:
    command = ("train", "--config", "a.yaml")
    assert "#SBATCH --no-requeue" in sbatch_script(command=command)
    assert "#SBATCH --requeue" in sbatch_script(command=(*command, "--output-dir", "runs/a"))
    with pytest.raises(UsageError, match="no --output-dir"):
        sbatch_script(command=command, max_restarts=1)


def test_a_cancelled_slurm_job_waits_for_its_workers_and_stays_cancelled(tmp_path: Path, witness: Path) -> None:
    started, may_end = tmp_path / "started", tmp_path / "may_end"
    os.mkfifo(started)
    os.mkfifo(may_end)
    srun = tmp_path / "bin" / "srun"
    srun.write_text(f"#!/bin/bash\necho yes > '{started}'\nread -r line < '{may_end}'\nexit 75\n")
    assert srun.stat().st_mode & stat.S_IXUSR
    process = subprocess.Popen(
        ["bash", "-c", sbatch_script(max_restarts=2)],
        cwd=tmp_path,
        env={**os.environ, "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "a"},
    )
    try:
        assert started.read_text() == "yes\n"
        process.send_signal(signal.SIGTERM)
        may_end.write_text("go\n")
        assert process.wait(timeout=SECONDS) == 75
    finally:
        process.kill()
        process.wait(timeout=SECONDS)
    assert not witness.exists()  # no scontrol


def mpi_job(**changes: Any) -> dict[str, Any]:
    plan = kubernetes.render(job(**{"hosts": (), "image": "a/b:1", **changes}), KubernetesOptions(claim="c"))
    loaded: dict[str, Any] = yaml.safe_load(plan.files["hvdtrain.yaml"])
    return loaded


def test_an_mpi_job_says_what_the_job_says() -> None:
    spec = mpi_job(np=7, slots_per_host=4, gpus_per_host=4, time_limit=60, env=("SOME_SECRET",))["spec"]
    launcher, workers = (spec["mpiReplicaSpecs"][name] for name in ("Launcher", "Worker"))
    (first,) = launcher["template"]["spec"]["containers"]
    (worker,) = workers["template"]["spec"]["containers"]
    assert (spec["slotsPerWorker"], launcher["replicas"], workers["replicas"]) == (4, 1, 2)
    assert first["args"][:2] == ["-np", "7"]
    assert tuple(first["args"][-len(AWKWARD) - 3 :]) == ("python", "-m", "hvdtrain", *AWKWARD)
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == 4
    assert first["env"][-1]["valueFrom"]["secretKeyRef"] == {"name": "hvdtrain-env", "key": "SOME_SECRET"}
    for replicas in (launcher, workers):
        pod = replicas["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        mounted = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]} == {"shm", "data"}


@pytest.mark.parametrize(
    "changes", [{"name": "Digits"}, {"name": "a.b"}, {"image": None}, {"max_restarts": 1}, {"np": 4, "hosts": HOSTS}]
)
def test_what_kubernetes_cannot_take_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        mpi_job(**changes)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"namespace": "A"}, "--namespace"), ({"memory": "lots"}, "--memory"), ({"run_as_user": 0}, "run as root")],
)
def test_what_pods_cannot_have_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        KubernetesOptions(**options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"np": 7, "slots_per_host": 4}, "HINT: use -np 8, or another --slots-per-host."),
        ({"max_restarts": 1}, "a TrainJob has nothing for that"),
        ({"grace": 90.0}, "a TrainJob has nothing for that"),
    ],
)
def test_what_a_train_job_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    options = KubernetesOptions(kind="TrainJob", claim="c")
    command = ("train", "--output-dir", "/data/run")
    with pytest.raises(UsageError, match=message):
        kubernetes.render(job(**{"hosts": (), "image": "a/b:1", "command": command, **changes}), options)


def test_a_train_job_mounts_what_it_has_and_starts_scripts_too() -> None:
    options = KubernetesOptions(kind="TrainJob", claim="c")
    wanted = job(hosts=(), image="a/b:1", np=4, slots_per_host=2, command=("python", "mine.py", "$(HOME)$$"))
    fields = train_job(wanted, options)
    trainer = fields["spec"]["trainer"]
    meeting = ["-m", "hvdtrain.comm.script_start"]
    assert (trainer["command"], trainer["args"]) == (["torchrun"], [*meeting, "python", "mine.py", "$$(HOME)$$$"])
    by_path = train_job(replace(wanted, python="/opt/py"), options)["spec"]["trainer"]
    assert by_path["command"] == ["/opt/py", "-m", "torch.distributed.run"]
    assert by_path["args"] == [*meeting, "/opt/py", "mine.py", "$$(HOME)$$$"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 2)
    (patched,) = fields["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = patched["template"]["spec"]["template"]["spec"]
    mounted = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]} == {"shm", "data"}


def test_workers_that_slurm_only_numbers_meet_before_a_script_begins() -> None:
    wanted = job(hosts=(), np=2, command=("mine.py", "--fast"))
    for inner, starts in (("srun", True), ("pmix", False), ("mpirun", False)):
        (script,) = slurm.render(wanted, slurm.SlurmOptions(inner=inner)).files.values()
        assert ("hvdtrain.comm.script_start" in script) == starts
    (script,) = slurm.render(replace(wanted, command=("train",))).files.values()
    assert "script_start" not in script


@pytest.mark.parametrize("render", [horovodrun.render, lambda j: mpirun.render(j, "openmpi5")])
def test_a_wish_that_a_launcher_cannot_fulfil_is_refused(render: Any) -> None:
    for changes in ({"max_restarts": 1}, {"image": "a"}, {"hosts": ()}, {"hosts": (Host("fe80::1", 4),)}):
        with pytest.raises(UsageError):
            render(job(**changes))


def test_hosts_with_different_gpus_are_refused() -> None:
    mixed = (Host("a", 2, (0, 1)), Host("b", 2, (2, 3)))
    with pytest.raises(UsageError, match="different sets of GPUs"):
        mpirun.render(job(hosts=mixed), "openmpi4")
    with pytest.raises(UsageError, match="never passes CUDA_VISIBLE_DEVICES"):
        horovodrun.render(job(hosts=(Host("a", 2, (2, 3)), Host("b", 2, (2, 3)))))


@pytest.mark.parametrize(
    ("hosts", "np", "flavor", "is_set"),
    [
        ("abc", 6, "openmpi5", True),
        ("ab", 4, "openmpi5", False),  # a tree of two hosts sends no more than a ring
        ("abc", 3, "openmpi5", False),  # there is nothing to add on a host
        ("abc", 6, "openmpi4", False),  # uses no such module by itself
    ],
)
def test_workers_of_three_hosts_are_added_per_host_first(hosts: str, np: int, flavor: str, is_set: bool) -> None:
    there = tuple(Host(name, 2) for name in hosts)
    argv = mpirun.render(job(hosts=there, np=np), flavor).argv
    assert ("coll_han_use_allreduce_algorithm" in argv) is is_set


def test_root_is_allowed_only_when_asked_for() -> None:
    assert "--allow-run-as-root" not in mpirun.render(job(), "openmpi4").argv
    assert "--allow-run-as-root" in mpirun.render(job(allow_root=True), "openmpi4").argv


@pytest.mark.parametrize(
    ("text", "flavor"),
    [
        ("mpirun (Open MPI) 5.0.11\n", "openmpi5"),
        ("mpirun.openmpi (OpenRTE) 4.1.4\n", "openmpi4"),
        ("mpirun (Open MPI) 3.1.0\n", None),
        ("HYDRA build details:\n    Version: 4.0.2\n", "mpich"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.13\n", "intel"),
        ("bash: mpirun: not found\n", None),
    ],
)
def test_an_mpirun_is_known_by_its_version(text: str, flavor: str | None) -> None:
    assert flavor_of(text) == flavor


def test_a_file_that_was_edited_is_not_replaced_unless_asked(tmp_path: Path) -> None:
    plan = slurm.render(job(hosts=()))
    (path,) = write_files(plan, overwrite=False, folder=tmp_path)
    assert write_files(plan, overwrite=False, folder=tmp_path) == [path]
    path.write_text("edited\n")
    with pytest.raises(UsageError, match="says something else"):
        write_files(plan, overwrite=False, folder=tmp_path)
    assert path.read_text() == "edited\n"
    write_files(plan, overwrite=True, folder=tmp_path)
    assert path.read_text() == plan.files["hvdtrain.sbatch"]
    assert [p.name for p in tmp_path.iterdir()] == ["hvdtrain.sbatch"]


def test_only_files_are_replaced_and_links_are_followed(tmp_path: Path) -> None:
    plan = slurm.render(job(hosts=()))
    script = tmp_path / "hvdtrain.sbatch"
    os.mkfifo(script)
    for overwrite in (False, True):
        with pytest.raises(UsageError, match="not a regular file"):
            write_files(plan, overwrite, folder=tmp_path)
    script.unlink()
    script.symlink_to("kept elsewhere")
    write_files(plan, overwrite=False, folder=tmp_path)
    assert script.is_symlink()
    assert (tmp_path / "kept elsewhere").read_text() == plan.files["hvdtrain.sbatch"]
