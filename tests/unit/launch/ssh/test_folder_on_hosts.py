"""Folders that an agent makes, fills, reads and removes for a launcher; tests/cluster has two hosts with disks of their
own."""

from __future__ import annotations

import os
import stat
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvdtrain.errors import UsageError
from hvdtrain.launch.ssh.command import SshOptions, agent_argv
from hvdtrain.launch.ssh.folder_on_hosts import FOLDER_VARIABLE, FolderOnHosts
from hvdtrain.launch.ssh.line import ProgramLine
from hvdtrain.launch.ssh.link import AgentError, HostLink

DEADLINE_S = 60.0


@pytest.fixture
def link() -> Iterator[HostLink]:
    """To an agent on this machine, without ssh between."""
    made = HostLink("b", ProgramLine(agent_argv(SshOptions(sys.executable))), DEADLINE_S, DEADLINE_S)
    try:
        yield made
    finally:
        if not made.lost:
            made.close(DEADLINE_S)


def test_an_agent_keeps_a_folder_for_its_owner_alone_until_it_ends(link: HostLink, tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    folder = str(tmp_path / "new")
    assert link.ask("make_folder", DEADLINE_S, folder=folder) is True
    assert link.ask("make_folder", DEADLINE_S, folder=folder) is False
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    for at in range(0, len(content), 1_000_000):
        part = b64encode(content[at : at + 1_000_000]).decode()
        link.ask("put", DEADLINE_S, folder=folder, name="a", part=part)
    assert link.ask("list_files", DEADLINE_S, folder=folder) == {"a": len(content)}
    received = b""
    while part := link.ask("get", DEADLINE_S, folder=folder, name="a", at=len(received)):
        received += b64decode(part)
    assert received == content
    link.close(DEADLINE_S)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_a_host_has_already_is_left_alone(link: HostLink, tmp_path: Path) -> None:
    (tmp_path / "call").write_bytes(b"1")
    folder = FolderOnHosts.asked_for({FOLDER_VARIABLE: str(tmp_path)})
    assert folder is not None
    folder.send([link], lambda: False)
    folder.fetch()
    link.close(DEADLINE_S)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"call": b"1"}


def test_a_host_on_which_the_folder_cannot_be_is_named(link: HostLink, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="none/call cannot be made and filled on b: .* No such file or directory"
    ) as no:
        FolderOnHosts(tmp_path / "none" / "call").send([link], lambda: False)
    assert no.value.hint == "set TMPDIR to a folder that all hosts have, or name one that they share by shared_folder=."
    with pytest.raises(AgentError):
        link.ask("get", DEADLINE_S, folder=str(tmp_path), name="a", at=0)
