"""Keys and settings of ssh and sshd for each host: every host may log in to every other, and knows its key."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from host_init import TEMPORARY

CLIENT = """\
Host *
    IdentityFile /etc/ssh/id
    IdentitiesOnly yes
    UserKnownHostsFile /etc/ssh/known_hosts
    StrictHostKeyChecking yes
    LogLevel ERROR
"""

SERVER = """\
Port 22
HostKey /etc/ssh/host_key
AuthorizedKeysFile /etc/ssh/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
UsePAM no
MaxStartups 100
PidFile none
SetEnv TMPDIR={temporary}
"""


def make_key(path: Path) -> str:
    """Make a key pair PATH, PATH.pub; returns the public one."""
    path.unlink(missing_ok=True)
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, timeout=20)
    return path.with_name(f"{path.name}.pub").read_text().strip()


def write_ssh_files(folders: Mapping[str, Path], addresses: Mapping[str, str], keys: Path) -> None:
    """Fill each host's `etc/ssh` folder.

    Args:
        folders: host → its folder.
        addresses: host → address.
        keys: folder that keeps the keys, so that a second call writes the same.
    """
    keys.mkdir(exist_ok=True)
    for name in ("id", *folders):
        if not (keys / name).exists():
            make_key(keys / name)
    public = {name: (keys / f"{name}.pub").read_text().strip() for name in ("id", *folders)}
    known = "".join(f"{name},{address} {public[name]}\n" for name, address in addresses.items())
    for name, folder in folders.items():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy2(keys / "id", folder / "id")
        shutil.copy2(keys / name, folder / "host_key")
        (folder / "authorized_keys").write_text(public["id"] + "\n")
        (folder / "known_hosts").write_text(known)
        (folder / "ssh_config").write_text(CLIENT)
        (folder / "sshd_config").write_text(SERVER.format(temporary=TEMPORARY))
