"""Process 1 of an emulated host: gives it a name, files and an sshd of its own, then reaps what its processes leave.

Started in new mount, network, host name, IPC and process namespaces, by an interpreter without site packages:
python -I -S host_init.py NAME FOLDER, where FOLDER holds etc/hosts, etc/resolv.conf and etc/ssh/.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

# TMPDIR of all that runs on a host, in files of its own. mpirun keeps its session in $TMPDIR/ompi.PID: two hosts that
# share /tmp and count processes from 1 would remove each other's.
TEMPORARY = Path("/run/tmp")


def main() -> None:
    """Prepare, say "PID ready", and stay until killed; then the kernel ends all processes of this host."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    outer_pid = os.readlink("/proc/self")  # /proc is still the machine's
    socket.sethostname(name)
    _mount_own_files(folder / "etc")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True, timeout=10)
    sshd = subprocess.Popen(
        ["/usr/sbin/sshd", "-D", "-E", str(folder / "sshd.log")], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    print(f"{outer_pid} ready", flush=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # who started this host hears no more
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _reap_until_gone(sshd.pid)


def _mount_own_files(etc: Path) -> None:
    """All of it lives in this host's mount namespace: nothing changes outside."""
    _mount("--make-rprivate", "/")
    _mount("-t", "proc", "proc", "/proc")
    _mount("-t", "tmpfs", "tmpfs", "/dev/shm")
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")  # /run/sshd, and no sockets of the machine's services
    Path("/run/sshd").mkdir(mode=0o755)
    TEMPORARY.mkdir(mode=0o700)
    for file in ("hosts", "resolv.conf"):
        _mount("--bind", str(etc / file), f"/etc/{file}")
    _mount("--bind", str(etc / "ssh"), "/etc/ssh")
    own_ssh = Path.home() / ".ssh"
    if own_ssh.is_dir():  # the keys and settings of whoever runs the tests have no say here
        _mount("-t", "tmpfs", "-o", "mode=700", "tmpfs", str(own_ssh))


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, timeout=10)


def _reap_until_gone(pid: int) -> None:
    while os.wait()[0] != pid:
        pass  # orphans of any process here become children of process 1


if __name__ == "__main__":
    main()
