"""A host is believed only if it has the key that is known here: an sshd of this machine, whose key is swapped."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from trap import Trap

from hvdtrain.cli.main import main

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
DEADLINE_S = 60
HOST = "victim"

pytestmark = pytest.mark.skipif(
    SSHD is None or shutil.which("ssh") is None or os.geteuid() != 0, reason="needs root, ssh and sshd"
)

CLIENT = """\
Host {host}
    HostName 127.0.0.1
    Port {port}
    HostKeyAlias {host}
    IdentityFile {folder}/id
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
    GlobalKnownHostsFile /dev/null
"""

SERVER = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
PidFile none
"""


class Victim:
    """A host whose key may be swapped; `ssh` in a folder of its own reads the settings that lead there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wrapper = folder / "bin"
        self.wrapper.mkdir()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        for name in ("id", "host_key"):
            self._make_key(name)
        shutil.copy(folder / "id.pub", folder / "authorized_keys")
        (folder / "known_hosts").write_text(f"{HOST} {(folder / 'host_key.pub').read_text()}")
        settings = {"host": HOST, "port": self._port, "folder": folder}
        (folder / "ssh_config").write_text(CLIENT.format(**settings))
        (folder / "sshd_config").write_text(SERVER.format(**settings))
        ssh = self.wrapper / "ssh"
        ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
        ssh.chmod(0o755)

    def start(self) -> None:
        os.makedirs("/run/sshd", exist_ok=True)  # sshd(8) wants it
        assert SSHD is not None
        log = self.folder / "log"
        self._process = subprocess.Popen([SSHD, "-D", "-f", str(self.folder / "sshd_config"), "-E", str(log)])
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
                return
            except OSError:
                assert self._process.poll() is None, log.read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(DEADLINE_S)

    def swap_key(self) -> None:
        """Another machine answers now."""
        self.stop()
        self._make_key("host_key")
        self.start()

    def log_in(self, *options: str, command: str) -> int:
        words = [str(self.wrapper / "ssh"), "-o", "BatchMode=yes", *options, HOST, command]
        return subprocess.run(words, capture_output=True, timeout=DEADLINE_S, check=False).returncode

    def _make_key(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(self.folder / name)]
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL, timeout=DEADLINE_S)


@pytest.fixture
def victim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Victim]:
    (tmp_path / "host").mkdir()
    host = Victim(tmp_path / "host")
    monkeypatch.setenv("PATH", f"{host.wrapper}{os.pathsep}{os.environ['PATH']}")
    host.start()
    yield host
    host.stop()


@pytest.mark.parametrize("launcher", ["ssh", "horovodrun"])
def test_a_host_with_another_key_is_not_given_anything(
    launcher: str, victim: Victim, trap: Trap, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The interpreter that a launcher starts there is the trap."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{trap.command}\n")
    python.chmod(0o755)
    assert victim.log_in(command="true") == 0, "its own key is known"
    victim.swap_key()
    unchecked = ("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null")
    trap.require_sprung_by(lambda: victim.log_in(*unchecked, command=str(python)))
    flags = ["-np", "2", f"--hosts={HOST}:2", "--python", str(python), "--start-timeout", "30"]
    assert main(["launch", launcher, *flags, "--", "train"]) == 2
    assert "its host key is not the one that is known here" in capfd.readouterr().err
    trap.require_unsprung()


def test_only_a_loud_option_gives_it_up(victim: Victim, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What would run says so in capitals."""
    victim.swap_key()
    flags = ["-np", "2", f"--hosts={HOST}:2", "--python", str(tmp_path / "python")]
    assert main(["launch", "ssh", *flags, "--dry-run", "--", "train"]) == 0
    assert "StrictHostKeyChecking" not in capfd.readouterr().out
    assert main(["launch", "ssh", *flags, "--no-host-key-check", "--dry-run", "--", "train"]) == 0
    shown = capfd.readouterr().out
    assert "HOST KEYS ARE NOT CHECKED" in shown
    assert "StrictHostKeyChecking=no" in shown
    assert main(["launch", "ssh", *flags, "--no-host-key-check", "--", "train"]) != 0, "there is no such interpreter"
    assert "WARNING: host keys are not checked" in capfd.readouterr().err
