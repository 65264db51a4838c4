"""What ssh says becomes a cause and a remedy. Real ssh is asked in tests/cluster; here a program stands in for it."""

from __future__ import annotations

import os
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hvdtrain.errors import UsageError
from hvdtrain.launch.hosts.host import Host
from hvdtrain.launch.job_spec import JobSpec
from hvdtrain.launch.ssh.check import check_hosts, check_python_here, require_usable_hosts

# Of OpenSSH 9.2, 203.0.113.0/24 being nobody's (RFC 5737).
SAID = {
    "does not resolve": "ssh: Could not resolve hostname a: Name or service not known",
    "cannot be reached": "ssh: connect to host 203.0.113.1 port 22: Connection timed out",
    "nothing listens": "ssh: connect to host 203.0.113.1 port 22: Connection refused",
    "refuses your key": "root@203.0.113.1: Permission denied (publickey).",
    "host key is not known": "No ED25519 host key is known for 203.0.113.1 and you have requested strict checking.\n"
    "Host key verification failed.",
    "another machine": "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\nHost key verification failed.",
    "ssh failed": "kex_exchange_identification: Connection closed by remote host",
}


def put_ssh(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let `ssh` be this shell script."""
    program = folder / "ssh"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize("cause", SAID)
def test_each_failure_has_its_cause_and_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: str) -> None:
    put_ssh(tmp_path, monkeypatch, f"printf '%s\\n' {shlex.quote(SAID[cause])} >&2; exit 255")
    (finding,) = check_hosts(["203.0.113.1"])
    assert finding.host == "203.0.113.1"
    assert cause in finding.message
    assert "{" not in finding.message + finding.hint


@pytest.mark.parametrize("version", ["2.7.5", "3.6.8", "3.10.13"])
def test_an_old_python_is_named_with_those_that_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    put_ssh(tmp_path, monkeypatch, 'for command; do :; done; exec sh -c "$command"')
    assert check_hosts(["203.0.113.1"], python=sys.executable) == []
    parts = tuple(map(int, version.split(".")))
    old = f"import sys; sys.version_info = {parts}; sys.version = '{version} (main)'; exec(sys.argv[1])"
    python = tmp_path / "old-python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{old}" $2\n')  # as scripts that split words do
    python.chmod(0o755)
    (finding,) = check_hosts(["203.0.113.1"], python=str(python))
    assert finding.message == f"it has Python {version}; hvdtrain needs Python 3.11 to 3.13"
    assert "--python" in finding.hint
    assert check_python_here(["localhost"], str(python)) == [replace(finding, host="localhost")]
    assert check_python_here(["localhost"], sys.executable) == []


def test_a_host_that_never_answers_costs_the_deadline_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_ssh(tmp_path, monkeypatch, "sleep 600")
    began = time.monotonic()
    findings = check_hosts([f"203.0.113.{i}" for i in range(1, 9)], deadline_s=1)
    assert time.monotonic() - began < 100
    assert {finding.message for finding in findings} == {"it gave no answer within 1 s"}


def test_this_machine_needs_no_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_ssh(tmp_path, monkeypatch, "echo Connection refused >&2; exit 255")
    assert [finding.host for finding in check_hosts(["localhost", "203.0.113.1"])] == ["203.0.113.1"]


def test_mpirun_inside_slurm_uses_no_ssh_and_horovodrun_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_ssh(tmp_path, monkeypatch, f"echo {shlex.quote(SAID['refuses your key'])} >&2; exit 255")
    job = JobSpec(command=("train",), np=2, hosts=(Host("203.0.113.1", 1), Host("203.0.113.2", 1)))
    require_usable_hosts(job, "mpirun", {"SLURM_JOB_ID": "1"})
    with pytest.raises(UsageError, match="2 of 2 hosts cannot be used: 203.0.113.1: it refuses your key"):
        require_usable_hosts(job, "horovodrun", {"SLURM_JOB_ID": "1"})
