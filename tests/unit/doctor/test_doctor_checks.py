"""Healthy hosts give no warning; each thing that goes wrong gives one, of the right weight, on the right host."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.doctor.findings import Finding, merge_hosts, on_each_host, worst_status
from hvdtrain.doctor.job_environment import environment_facts, processes_on_host, variables_on_host
from hvdtrain.doctor.machine import gpu_findings, machine_on_host
from hvdtrain.doctor.network import clock_findings, interface_findings, name_findings, twin_findings
from hvdtrain.doctor.network_links import choose_interfaces
from hvdtrain.doctor.shared_files import data_findings, output_findings, working_dir_findings
from hvdtrain.doctor.software import frameworks_on_host, mpi_findings, version_findings

Hosts = dict[str, dict[str, Any]]
Healthy = Callable[..., Hosts]


def all_findings(hosts: Hosts, slots: int = 4) -> list[Finding]:
    """Every check that compares facts."""
    many = dict.fromkeys(hosts, slots)
    return [
        *version_findings(hosts),
        *on_each_host(hosts, partial(frameworks_on_host, frameworks=["torch"], workers=slots * len(hosts))),
        *mpi_findings(hosts),
        *gpu_findings(hosts),
        *on_each_host(hosts, partial(machine_on_host, workers=slots * len(hosts)), slots=many),
        *on_each_host(hosts, variables_on_host, slots=many),
        *on_each_host(hosts, processes_on_host),
        *data_findings(hosts),
        *twin_findings(hosts),
        *name_findings(hosts),
        *interface_findings(hosts, choose_interfaces(hosts), ()),
        *working_dir_findings(hosts, "/shared"),
    ]


def test_healthy_hosts_give_no_warning(healthy: Healthy) -> None:
    for count in (1, 2, 5):
        findings = all_findings(healthy(count))
        assert [finding for finding in findings if finding.status != "ok"] == []
        assert [finding for finding in findings if finding.hint] == []


def put(path: str, value: Any) -> Callable[[Hosts], None]:
    """A change of host2's facts: "machine.cores.quota" and its new value."""

    def change(hosts: Hosts) -> None:
        *folders, last = path.split(".")
        place = hosts["host2"]
        for folder in folders:
            place = place[folder]
        place[last] = value

    return change


GPU = {"index": "0", "name": "H", "driver": "550.1", "memory": 80000, "used": 10}
DATA = {"path": "/data", "files": 8, "bytes": 2**30, "fingerprint": "cd" * 8, "whole": True, "error": None}
BROKEN: dict[str, tuple[Callable[[Hosts], None], str, str, str]] = {
    # What is broken on host2: the change, the check that finds it, its status, a word of the fact.
    "python": (put("software.versions.python", "3.11.9"), "versions", "fail", "3.11.9 on host2"),
    "no horovod": (put("software.versions.horovod", None), "versions", "fail", "not installed on host2"),
    "numpy": (put("software.versions.numpy", "2.0"), "versions", "warn", "numpy"),
    "architecture": (put("machine.architecture", "aarch64"), "versions", "warn", "aarch64"),
    "no framework": (put("frameworks", {}), "frameworks", "fail", "neither"),
    "an import that crashes": (put("frameworks.torch", {"error": "signal 11"}), "frameworks", "fail", "signal 11"),
    "no binding": (put("frameworks.torch.horovod", None), "horovod", "fail", "no Horovod for torch"),
    "another mpirun": (put("software.mpirun.version", "mpirun (Open MPI) 4.1.4"), "mpi", "warn", "4.1.4"),
    "no mpirun": (put("software.mpirun", None), "mpi", "warn", "there is no mpirun"),
    "another MPI": (put("frameworks.torch.mpi", "Open MPI v4.1.4, package"), "mpi", "warn", "on host2"),
    "a broken driver": (put("gpu.error", "Driver/library version mismatch"), "gpu", "fail", "mismatch"),
    "GPUs here only": (put("gpu.devices", [GPU]), "gpu", "warn", "0 on host1, 1 on host2"),
    "GPU in use": (put("gpu.devices", [{**GPU, "used": 30000}]), "gpu", "warn", "30000 MiB"),
    "a CPU build": (put("gpu.devices", [GPU]), "gpu", "warn", "torch is a build for CPUs"),
    "no NCCL": (put("frameworks.torch.gpus", 1), "horovod", "warn", "not nccl"),
    "a quota": (put("machine.cores.quota", 2.0), "cores", "warn", "2 of 16"),
    "few cores": (put("machine.cores.allowed", 2), "cores", "warn", "4 workers share 2 cores"),
    "little memory": (put("machine.memory.available", 2**30), "memory", "warn", "1 GiB of"),
    "a memory limit": (put("machine.memory.limit", 2**31), "memory", "warn", "2 GiB for this control group"),
    "Docker's shm": (put("machine.shm", {"total": 2**26, "free": 2**26}), "/dev/shm", "warn", "64 MiB"),
    "no shm": (put("machine.shm", None), "/dev/shm", "warn", "is not there"),
    "files": (put("machine.limits.nofile", [1000, 1000]), "ulimit", "warn", "nofile is 1000"),
    "processes": (put("machine.limits.nproc", [100, 100]), "ulimit", "warn", "nproc is 100"),
    "memlock": (put("machine.infiniband", ["mlx5_0"]), "ulimit", "warn", "mlx5_0"),
    "a full disk": (put("machine.output.free", 2**20), "disk", "fail", "1 MiB free"),
    "little disk": (put("machine.output.free", 2**30), "disk", "warn", "1 GiB free"),
    "P2P off": (put("environment", {"NCCL_P2P_DISABLE": "1"}), "variables", "warn", "NCCL_P2P_DISABLE=1"),
    "a rank": (put("environment", {"HOROVOD_RANK": "3"}), "variables", "warn", "HOROVOD_RANK=3"),
    "no such NIC": (put("environment", {"HOROVOD_GLOO_IFACE": "ib0"}), "variables", "fail", "ib0"),
    "threads": (put("environment", {"OMP_NUM_THREADS": "16"}), "variables", "warn", "OMP_NUM_THREADS=16"),
    "a job": (put("processes", [{"pid": 7, "user": 0, "command": "hvdtrain train"}]), "processes", "warn", "7"),
    "other data": (put("data", [DATA]), "data", "fail", "/data differs"),
    "no data": (put("data", [{**DATA, "error": "no such file"}]), "data", "fail", "no such file"),
    "much data": (put("data", [{**DATA, "whole": False}]), "data", "warn", "no time for more"),
    "an unknown name": (put("names.host1", "Name or service not known"), "host names", "fail", "host1"),
    "Debian's own name": (put("names.host2", ["127.0.1.1"]), "host names", "warn", "127.0.1.1"),
    "another folder": (put("working_dir", "/root"), "working folder", "warn", "/root"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_broken_on_one_host_is_found(case: str, healthy: Healthy) -> None:
    change, name, status, word = BROKEN[case]
    hosts = healthy(3)
    change(hosts)
    found = [f for f in all_findings(hosts) if f.name == name and f.status == status and word in f.fact]
    assert found, all_findings(hosts)
    for finding in found:
        assert finding.host in ("host2", ""), finding
        assert finding.hint.endswith("."), finding


@pytest.mark.parametrize(
    ("value", "frameworks", "status"),
    [
        ("torch", ["tensorflow"], "fail"),
        ("jax", ["torch", "tensorflow"], "warn"),
        ("jax", ["torch"], "ok"),
        ("tensorflow", ["tensorflow"], "ok"),
        ("", ["tensorflow"], "ok"),
    ],
)
def test_another_backend_of_keras_is_found_where_tensorflow_is_to_be_used(
    value: str, frameworks: list[str], status: str, healthy: Healthy
) -> None:
    facts = healthy(1)["host1"]
    facts["environment"] = environment_facts({"KERAS_BACKEND": value})
    facts["frameworks"] = dict.fromkeys(frameworks, facts["frameworks"]["torch"])
    (found,) = variables_on_host(facts, slots=1)
    assert (found.status, "KERAS_BACKEND=" in found.fact) == (status, status != "ok")


def test_a_name_that_hosts_understand_differently_is_found(healthy: Healthy) -> None:
    hosts = healthy(3)
    hosts["host3"]["names"]["host1"] = ["10.9.9.9"]
    (found,) = [finding for finding in name_findings(hosts) if finding.status != "ok"]
    assert "host1 resolves to 10.0.0.1 on host2; 10.9.9.9 on host3" in found.fact


def test_docker0_is_never_the_network_though_all_hosts_have_it(healthy: Healthy, interface: Callable[..., Any]) -> None:
    hosts = healthy(2)
    for facts in hosts.values():
        facts["interfaces"].insert(0, interface("docker0", "172.17.0.1", "172.17.0.0/16"))
    assert {own["name"] for own in choose_interfaces(hosts).values()} == {"eth0"}


def test_hosts_meet_on_the_network_that_their_names_mean(healthy: Healthy, interface: Callable[..., Any]) -> None:
    hosts = healthy(2)
    for i, facts in enumerate(hosts.values(), start=1):
        facts["interfaces"].insert(0, interface("eno1", f"192.168.0.{i}", "192.168.0.0/24"))
    assert {own["name"] for own in choose_interfaces(hosts).values()} == {"eth0"}
    for facts in hosts.values():
        facts["names"] = {}
    assert {own["name"] for own in choose_interfaces(hosts).values()} == {"eno1"}
    assert {own["name"] for own in choose_interfaces(hosts, ("ib0", "eth0")).values()} == {"eth0"}


@pytest.mark.parametrize(
    ("changed", "word"),
    [({"mtu": 9000}, "MTU"), ({"speed": 1000}, "1000 on host2"), ({"name": "ens3"}, "ens3 on host2")],
)
def test_unlike_interfaces_are_a_warning(healthy: Healthy, changed: dict[str, Any], word: str) -> None:
    hosts = healthy(2)
    hosts["host2"]["interfaces"][1] |= changed
    findings = interface_findings(hosts, choose_interfaces(hosts), ())
    assert [finding for finding in findings if finding.status == "warn" and word in finding.fact], findings


def test_a_host_without_the_interface_fails(healthy: Healthy) -> None:
    hosts = healthy(2)
    hosts["host2"]["interfaces"].pop()
    for nics in ((), ("eth0",)):
        (found,) = interface_findings(hosts, choose_interfaces(hosts, nics), nics)
        assert (found.status, found.host) == ("fail", "host2")


def test_an_interface_that_one_machine_alone_lacks_fails(healthy: Healthy) -> None:
    hosts = healthy(1)
    assert [f.status for f in interface_findings(hosts, choose_interfaces(hosts, ("lo",)), ("lo",))] == ["ok"]
    (found,) = interface_findings(hosts, choose_interfaces(hosts, ("nosuch0",)), ("nosuch0",))
    assert (found.status, found.fact) == ("fail", "it has none of nosuch0")


def test_one_machine_under_two_names_fails(healthy: Healthy) -> None:
    hosts = healthy(3)
    assert twin_findings(hosts) == []
    hosts["host3"]["interfaces"] = hosts["host1"]["interfaces"]
    (found,) = twin_findings(hosts)
    assert (found.status, found.fact) == ("fail", "host1 and host3 are one machine")
    hosts["host3"]["machine"]["boot"] = "another"
    assert twin_findings(hosts) == []


WITHOUT = {"horovod": None, "horovod_error": "ModuleNotFoundError: No module named 'horovod'"}
CRASHES = {"error": "the import ended with signal 6"}
BOTH: dict[str, tuple[dict[str, Any], dict[str, Any], int, set[str]]] = {
    # What is wrong with torch, with tensorflow, workers: the statuses of the findings.
    "all is well": ({}, {}, 2, {"ok"}),
    "no Horovod": (WITHOUT, WITHOUT, 2, {"ok", "fail"}),
    "no Horovod for one worker": (WITHOUT, WITHOUT, 1, {"ok"}),
    "none for what train takes": (WITHOUT, {}, 2, {"ok", "fail"}),
    "none for the other": ({}, WITHOUT, 2, {"ok", "warn"}),
    "torch crashes": (CRASHES, {}, 2, {"ok", "fail"}),
    "tensorflow crashes": ({}, CRASHES, 2, {"ok", "fail"}),
    "torch crashes for one worker": (CRASHES, {}, 1, {"ok", "fail"}),
}


@pytest.mark.parametrize("case", BOTH)
def test_what_is_installed_must_work_where_no_framework_is_named(case: str, healthy: Healthy) -> None:
    torch, tensorflow, workers, wanted = BOTH[case]
    hosts = healthy(1)
    facts = hosts["host1"]
    whole = facts["frameworks"]["torch"]
    facts["software"]["versions"]["tensorflow"] = "2.21.0"
    facts["frameworks"] = {
        name: change if "error" in change else whole | change
        for name, change in (("torch", torch), ("tensorflow", tensorflow))
    }
    findings = list(frameworks_on_host(hosts["host1"], [], workers))
    assert {finding.status for finding in findings} == wanted, findings
    assert all(finding.hint for finding in findings if finding.status != "ok")


@given(st.dictionaries(st.text("abc", min_size=1), st.floats(-1e3, 1e3), min_size=2))
def test_clocks_warn_beyond_a_second(offsets: dict[str, float]) -> None:
    (found,) = clock_findings(offsets)
    assert (found.status == "warn") == (max(offsets.values()) - min(offsets.values()) > 1)


def test_the_output_folder_must_be_one(healthy: Healthy) -> None:
    hosts = healthy(3)
    every = {host: [0, 1, 2] for host in hosts}
    assert [f.status for f in output_findings(hosts, every, {}, True)] == ["ok"]
    apart = every | {"host3": [2]}
    for named, status in ((True, "fail"), (False, "warn")):
        (found,) = output_findings(hosts, apart, {}, named)
        assert found.status == status
        assert "host3 does not see in /shared what host1, host2 writes" in found.fact
    seen = {"host1": [0, 2], "host3": [0, 2]}
    (refused,) = output_findings(hosts, seen, {"host2": "Read-only file system"}, True)
    assert (refused.status, refused.host) == ("fail", "host2")
    assert refused.fact == "/shared/runs cannot be made in /shared: Read-only file system"


@pytest.mark.parametrize(
    ("changed", "status", "fact"),
    [
        ({}, "ok", "/shared/runs can be made in /shared"),
        ({"path": "/shared"}, "ok", "/shared can be written"),
        ({"obstacle": "/shared/runs"}, "fail", "/shared/runs is not a folder"),
        (
            {"path": "/shared/a/b", "obstacle": "/shared/a"},
            "fail",
            "/shared/a/b cannot be made: /shared/a is not a folder",
        ),
    ],
)
def test_the_output_folder_is_named_as_the_user_did(
    changed: dict[str, str], status: str, fact: str, healthy: Healthy
) -> None:
    hosts = healthy(1)
    output = hosts["host1"]["machine"]["output"]
    output |= changed
    refused = {"host1": ""} if output["obstacle"] else {}
    (found,) = output_findings(hosts, {} if refused else {"host1": [0]}, refused, True)
    assert (found.status, found.fact) == (status, fact)


def test_where_no_disk_is_none_is_called_full(healthy: Healthy) -> None:
    hosts = healthy(1)
    hosts["host1"]["machine"]["output"] |= {"total": 0, "free": 0}  # /proc
    assert "disk" not in {finding.name for finding in machine_on_host(hosts["host1"], slots=2, workers=2)}


_FINDINGS = st.lists(
    st.builds(Finding, st.sampled_from("ab"), st.sampled_from(["ok", "warn", "fail"]), st.sampled_from("xy")),
    max_size=8,
)


@given(_FINDINGS, st.integers(1, 4))
def test_merging_hosts_loses_nothing(findings: list[Finding], count: int) -> None:
    hosts = [f"host{i}" for i in range(count)]
    spread = [Finding(f.name, f.status, f.fact, f.hint, hosts[i % count]) for i, f in enumerate(findings)]
    merged = merge_hosts(spread, hosts)
    assert worst_status(merged) == worst_status(spread)
    assert len({(f.name, f.status, f.fact) for f in merged}) == len(merged)
    for finding in spread:
        (found,) = [f for f in merged if (f.name, f.status, f.fact) == (finding.name, finding.status, finding.fact)]
        assert found.host == "" or finding.host in found.host.split(", ")


def test_a_url_is_said_to_be_unexamined(healthy: Healthy) -> None:
    (finding,) = [each for each in data_findings(healthy(2), ["s3://bucket/x"]) if each.status != "ok"]
    assert (finding.status, finding.fact) == ("warn", "s3://bucket/x was not examined: it is a URL")
