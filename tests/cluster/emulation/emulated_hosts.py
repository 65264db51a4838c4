"""Hosts that are emulated on one machine by Linux namespaces, each with a name, network, processes and sshd of its own.

They share the file system, as cluster nodes share a home directory. A host ends, with all its processes, when its
process 1 is killed; the kernel kills that when the test run ends, however it ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from host_init import TEMPORARY
from slot import Slot, clear
from ssh_files import write_ssh_files
from support.process_table import kill, processes_in
from support.processes import Finished, Spawned, wait_until

_INIT = Path(__file__).with_name("host_init.py")
_COMMAND_SECONDS = 10
_READY_SECONDS = 20


class EmulatedHosts:
    """The hosts host1, host2, … of one test run.

    Args:
        slot: whose names and addresses to use.
        count: how many hosts.
    """

    def __init__(self, slot: Slot, count: int) -> None:
        self.slot = slot
        self.names = tuple(f"host{i}" for i in range(1, count + 1))
        self._inits: dict[str, int] = {}
        self._services: set[int] = set()
        self._starters: list[subprocess.Popen[bytes]] = []
        self._spawned: list[Spawned] = []

    def start(self) -> None:
        """Start all hosts; returns when each answers each other's ssh."""
        self.restore_ssh()
        _command("ip", "link", "add", self.slot.bridge, "type", "bridge")
        _command("ip", "link", "set", self.slot.bridge, "up")
        for name in self.names:
            self._write_names(name)
            self._inits[name] = self._start_init(name)
            self._connect(name)
        self._wait_for_ssh()
        self.adopt_services()

    def stop(self) -> None:
        """End all hosts, with everything on them."""
        clear(self.slot)
        for starter in self._starters:
            starter.wait(_COMMAND_SECONDS)
        while self._spawned:
            self._spawned.pop().close()

    def address(self, host: str) -> str:
        """IPv4 address of a host."""
        return self.slot.address(self._index(host))

    def ssh_folder(self, host: str) -> Path:
        """What the host sees as /etc/ssh: known_hosts, authorized_keys, id, ssh_config. `restore` undoes changes."""
        return self._folder(host) / "etc" / "ssh"

    def run(
        self,
        host: str,
        argv: Sequence[str],
        deadline_s: float,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Finished:
        """Run a command on a host until it ends by itself.

        Args:
            host: its name.
            argv: looked up in PATH, where this interpreter's folder is first.
            deadline_s: seconds after which the test fails.
            env: variables added to the test's own.
            cwd: None: the test's own.

        Raises:
            AssertionError: at the deadline, with the ends of both outputs.
        """
        return self.spawn(host, argv, env, cwd).wait(deadline_s)

    def spawn(
        self, host: str, argv: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> Spawned:
        """Start a command on a host; arguments as `run`."""
        cwd = (cwd or Path.cwd()).absolute()
        spawned = Spawned([*self._enter(host, cwd), *argv], {**_environment(), **(env or {})}, cwd)
        self._spawned.append(spawned)
        return spawned

    def pids(self, host: str, containing: str = "") -> dict[int, str]:
        """Processes on a host that tests or their launchers started: pid as seen from here → command line.

        Args:
            host: its name.
            containing: only those whose command lines have this in them.
        """
        found = processes_in(self._inits[host])
        return {pid: line for pid, line in found.items() if pid not in self._services and containing in line}

    def start_service(self, host: str, argv: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        """Start a command that lives as long as its host does; see `adopt_services`."""
        with log.open("wb") as file:
            starter = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self._enter(host, Path("/")), *argv],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**_environment(), **env},
                start_new_session=True,
            )
        self._starters.append(starter)

    def adopt_services(self) -> None:
        """Whatever runs on the hosts now belongs to them: `pids` leaves it out, and no sweep kills it."""
        for name in self.names:
            self._services.update(processes_in(self._inits[name]))

    def left_over(self) -> dict[str, dict[int, str]]:
        """Hosts that run something beside their services: host → `pids`."""
        return {name: pids for name in self.names if (pids := self.pids(name))}

    def wait_until_quiet(self, deadline_s: float = 30) -> None:
        """Wait until no host runs anything.

        Raises:
            AssertionError: one still does after `deadline_s` seconds; the message has the command lines.
        """
        wait_until("nothing is left running", lambda: not self.left_over(), deadline_s, lambda: str(self.left_over()))

    def sweep(self) -> None:
        """Kill what runs on the hosts beside their services."""

        def killed() -> bool:
            kill(pid for pids in self.left_over().values() for pid in pids)
            return not self.left_over()

        wait_until("what was left running is killed", killed, _COMMAND_SECONDS, lambda: str(self.left_over()))
        while self._spawned:
            self._spawned.pop().close()

    def shape(self, host: str, rate: str) -> None:
        """Limit what a host sends, e.g. to "200mbit"; `restore` undoes it."""
        tbf = ("tbf", "rate", rate, "burst", "256kb", "limit", "8mb")
        self._inside(host, "tc", "qdisc", "replace", "dev", "eth0", "root", *tbf)

    def drop_packets(self, host: str) -> None:
        """Lose all packets from and to a host in silence, as a broken switch does; `restore` undoes it."""
        _command("bridge", "link", "set", "dev", self._link(host), "state", "0")

    def unplug(self, host: str) -> None:
        """Take a host's link down: it notices; the others do not. `restore` undoes it."""
        _command("ip", "link", "set", self._link(host), "down")

    def bind(self, host: str, source: Path, target: Path) -> None:
        """Let a host see `source` instead of `target`, until `unbind`."""
        self._inside(host, "mount", "--bind", str(source), str(target))

    def unbind(self, host: str, target: Path) -> None:
        """Undo `bind`."""
        self._inside(host, "umount", "--lazy", str(target))

    def restore(self) -> None:
        """Undo `shape`, `drop_packets`, `unplug` and changes to ssh's files."""
        self.restore_ssh()
        for name in self.names:
            link = self._link(name)
            _command("ip", "link", "set", link, "up")
            self._forward(link)
            subprocess.run(
                [*self._enter(name, Path("/")), "tc", "qdisc", "del", "dev", "eth0", "root"],
                stderr=subprocess.DEVNULL,
                timeout=_COMMAND_SECONDS,
                check=False,
            )  # fails where none is set

    def _forward(self, link: str) -> None:
        """Let the bridge forward to a link, which the kernel refuses until it has noticed that the link is up."""
        end = time.monotonic() + _COMMAND_SECONDS
        while True:
            try:
                return _command("bridge", "link", "set", "dev", link, "state", "3")
            except RuntimeError:
                if time.monotonic() > end:
                    raise
            time.sleep(0.02)

    def restore_ssh(self) -> None:
        """Write ssh's files as they were at the start."""
        folders = {name: self.ssh_folder(name) for name in self.names}
        write_ssh_files(folders, {name: self.address(name) for name in self.names}, self.slot.folder / "keys")

    def log(self, host: str) -> str:
        """What the host's sshd wrote."""
        path = self._folder(host) / "sshd.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _write_names(self, host: str) -> None:
        etc = self._folder(host) / "etc"
        lines = ["127.0.0.1 localhost", *(f"{self.address(name)} {name}" for name in self.names)]
        (etc / "hosts").write_text("\n".join(lines) + "\n")
        # Where nothing listens: a name that is not in /etc/hosts is refused at once, wherever the tests run.
        (etc / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")

    def _start_init(self, host: str) -> int:
        spaces = ("--mount", "--net", "--uts", "--ipc", "--pid")
        argv = ["setpriv", "--pdeathsig", "KILL", "unshare", *spaces, "--fork", "--kill-child"]
        with (self._folder(host) / "init.log").open("w+b") as log:
            starter = subprocess.Popen(
                [*argv, sys.executable, "-I", "-S", str(_INIT), host, str(self._folder(host))],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the tests; hosts end after them
            )
            self._starters.append(starter)
            assert starter.stdout is not None
            with starter.stdout as said:
                words = said.readline().split()
            if words[1:] != [b"ready"]:
                raise RuntimeError(f"{host} did not start:\n{os.pread(log.fileno(), 4096, 0).decode()}")
        return int(words[0])

    def _connect(self, host: str) -> None:
        link = self._link(host)
        peer = ("peer", "name", "eth0", "netns", str(self._inits[host]))
        _command("ip", "link", "add", link, "type", "veth", *peer)
        _command("ip", "link", "set", link, "master", self.slot.bridge, "up")
        self._inside(host, "ip", "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
        self._inside(host, "ip", "link", "set", "eth0", "up")

    def _wait_for_ssh(self) -> None:
        for name in self.names:
            argv = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=2", name, "true"]
            wait_until(
                f"{name} answers ssh",
                lambda argv=argv: self.run(self.names[0], argv, _COMMAND_SECONDS).returncode == 0,
                _READY_SECONDS,
                lambda name=name: self.log(name),
            )

    def _enter(self, host: str, cwd: Path) -> list[str]:
        spaces = ["--mount", "--net", "--uts", "--ipc", "--pid"]
        return ["nsenter", "--target", str(self._inits[host]), *spaces, f"--wd={cwd}", "--"]

    def _inside(self, host: str, *argv: str) -> None:
        _command(*self._enter(host, Path("/")), *argv)

    def _folder(self, host: str) -> Path:
        return self.slot.folder / host

    def _link(self, host: str) -> str:
        return self.slot.link(self._index(host))

    def _index(self, host: str) -> int:
        return self.names.index(host) + 1


def _environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {**os.environ, "PATH": path, "TMPDIR": str(TEMPORARY), "TF_CPP_MIN_LOG_LEVEL": "2"}


def _command(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
