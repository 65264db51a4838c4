"""Facts of healthy hosts, for tests that break one thing at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

_HEALTHY: dict[str, Any] = {
    "software": {
        "versions": {
            "python": "3.11.7",
            "hvdtrain": "0.1.0",
            "horovod": "0.28.1",
            "torch": "2.13.0",
            "tensorflow": None,
        },
        "python": "/opt/venv/bin/python",
        "kernel": "6.1",
        "mpirun": {"path": "/opt/venv/bin/mpirun", "version": "mpirun (Open MPI) 5.0.11"},
    },
    "frameworks": {
        "torch": {
            "gpus": 0,
            "cuda": None,
            "nccl": None,
            "horovod": {"mpi": True, "gloo": True, "nccl": False, "cuda": False, "rocm": False, "ccl": False},
            "horovod_error": None,
            "mpi": "Open MPI v5.0.11, package: Open MPI user@build Distribution",
            "mpi_path": "/opt/venv/lib/libmpi.so.40",
        }
    },
    "machine": {
        "architecture": "x86_64",
        "cores": {"machine": 16, "allowed": 16, "quota": None},
        "memory": {"total": 2**36, "available": 2**35, "limit": None},
        "limits": {"nofile": [65536, 65536], "memlock": [65536, 65536], "core": [0, -1], "nproc": [-1, -1]},
        "output": {
            "path": "/shared/runs",
            "folder": "/shared",
            "obstacle": None,
            "writable": True,
            "total": 2**40,
            "free": 2**39,
        },
        "shm": {"total": 2**33, "free": 2**33},
        "infiniband": [],
        "boot": "one kernel: containers on one machine have the same",
    },
    "gpu": {"tool": None, "error": None, "devices": []},
    "interfaces": [],
    "names": {},
    "environment": {},
    "processes": [],
    "data": [{"path": "/data", "files": 8, "bytes": 2**30, "fingerprint": "ab" * 8, "whole": True, "error": None}],
    "hostname": "",
    "working_dir": "/shared",
}


def _interface(name: str, address: str, network: str, **changed: Any) -> dict[str, Any]:
    usual = {"mtu": 1500, "speed": 10000, "virtual": False, "up": True}
    return {"name": name, "address": address, "network": network, **usual, **changed}


@pytest.fixture
def interface() -> Callable[..., dict[str, Any]]:
    """Facts of one interface: name, address, network, and what differs from the usual."""
    return _interface


@pytest.fixture
def healthy() -> Callable[..., dict[str, dict[str, Any]]]:
    """`healthy(3)`: facts of host1, host2, host3, which agree in everything."""

    def make(count: int = 2) -> dict[str, dict[str, Any]]:
        names = {f"host{i}": [f"10.0.0.{i}"] for i in range(1, count + 1)}
        hosts = {}
        for i, name in enumerate(names, start=1):
            facts = copy.deepcopy(_HEALTHY)
            facts["hostname"], facts["names"] = name, copy.deepcopy(names)
            facts["interfaces"] = [
                _interface("lo", "127.0.0.1", "127.0.0.0/8", virtual=True, speed=None),
                _interface("eth0", f"10.0.0.{i}", "10.0.0.0/24"),
            ]
            hosts[name] = facts
        return hosts

    return make
