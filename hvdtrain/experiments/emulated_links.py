"""Hosts on this machine with links of a limited rate: network namespaces at one switch. Linux; needs root, ip, tc."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from hvdtrain.errors import UsageError

_PREFIX: Final = "hvdlink"
_NETWORK: Final = "10.213.7"
_SECONDS: Final = 30
_LEAST_BURST: Final = 3_200  # Bytes: two Ethernet frames
_AGENT: Final = """#!/bin/sh
# What mpirun starts instead of ssh: the first word is a host's address, the others are the command there.
host=PREFIX-${1##*.}
shift
exec ip netns exec "$host" unshare --uts sh -c "hostname $host && $*"
"""


@dataclass(frozen=True)
class EmulatedLinks:
    """Hosts, while `emulated_links` is open."""

    names: Sequence[str]  # of the network namespaces

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(f"{_NETWORK}.{number}" for number in range(1, len(self.names) + 1))

    def on(self, host: int) -> list[str]:
        """The words before a command that run it on a host, which is counted from 0."""
        return ["ip", "netns", "exec", self.names[host]]


@contextmanager
def emulated_links(hosts: int, mbit: int) -> Iterator[EmulatedLinks]:
    """Each host sends and receives at most `mbit` million bits a second. Raises UsageError: this machine cannot emulate
    links."""
    _require_rights()
    _remove_forgotten()
    prefix = f"{_PREFIX}{os.getpid()}"
    links = EmulatedLinks([f"{prefix}-{number}" for number in range(1, hosts + 1)])
    switch = f"{prefix}-0"
    burst = max(_LEAST_BURST, mbit * 125)  # bytes of a millisecond, so that small messages take their time too
    limit = ["tbf", "rate", f"{mbit}mbit", "burst", f"{burst}b", "latency", "100ms"]
    with ExitStack() as opened:
        _namespace(switch, opened)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for name, address in zip(links.names, links.addresses, strict=True):
            _namespace(name, opened)
            port = f"port{name.rsplit('-', 1)[1]}"
            _ip("link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", port, "netns", switch)
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", switch, "link", "set", port, "master", "bridge")
            for place, device in ((name, "eth0"), (switch, port)):
                _ip("-n", place, "link", "set", device, "up")
                _run("tc", "-n", place, "qdisc", "add", "dev", device, "root", *limit)
        yield links


@contextmanager
def mpirun_words(links: EmulatedLinks) -> Iterator[list[str]]:
    """The words before a command that start it once on each host, by Open MPI 5."""
    program = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if program is None:
        raise UsageError("There is no mpirun.", "Servers and workers talk by MPI.", "pip install 'hvdtrain[mpi]'.")
    with TemporaryDirectory(prefix="hvdtrain-agent-") as folder:
        agent = Path(folder) / "agent"
        agent.write_text(_AGENT.replace("PREFIX", links.names[0].rsplit("-", 1)[0]))
        agent.chmod(0o700)
        hosts = ",".join(f"{address}:1" for address in links.addresses)
        start = [program, "--allow-run-as-root", "--prtemca", "plm_ssh_agent", str(agent), "--host", hosts]
        yield [*links.on(0), *start, "--map-by", "ppr:1:node", "--bind-to", "none", "-np", str(len(links.names))]


def _namespace(name: str, opened: ExitStack) -> None:
    _ip("netns", "add", name)
    opened.callback(_run, "ip", "netns", "del", name, must=False)
    _ip("-n", name, "link", "set", "lo", "up")


def _require_rights() -> None:
    missing = [program for program in ("ip", "tc", "unshare") if shutil.which(program) is None]
    if sys.platform != "linux" or os.geteuid() != 0 or missing:
        lack = f"it lacks {' and '.join(missing)}" if missing else "it does not run Linux, or you are not root"
        raise UsageError(
            f"Links cannot be emulated on this machine: {lack}.",
            "They are network namespaces of Linux whose devices have a limited rate.",
            "start it as root with the package iproute2, or measure real links without this option.",
        )


def _remove_forgotten() -> None:
    """Namespaces of a process that was killed."""
    for line in _run("ip", "netns", "list").splitlines():
        name = line.split(" ")[0]
        owner = name.removeprefix(_PREFIX).split("-")[0]
        if name.startswith(_PREFIX) and owner.isdigit() and not Path("/proc", owner).exists():
            _run("ip", "netns", "del", name, must=False)


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*argv: str, must: bool = True) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if must and done.returncode != 0:
        raise UsageError(
            f"Links cannot be emulated on this machine: {' '.join(argv)}: {done.stderr.strip()}.",
            "They are network namespaces of Linux whose devices have a limited rate.",
            "load the kernel's modules veth, bridge and sch_tbf, or measure real links without this option.",
        )
    return done.stdout
