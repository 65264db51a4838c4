"""Hosts that see another run folder than rank 0 are named, and no run begins again that a host has a checkpoint of."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support.ranks import ThreadCommunicator, all_well, run_on_ranks

from hvdtrain.errors import UsageError
from hvdtrain.run import shared_folder
from hvdtrain.run.shared_folder import hosts_that_see_another


def looked(folders: list[Path], continues: bool = True) -> list[list[str]]:
    """What each rank is told, where each is on a host of its own that sees its own folder."""

    def work(comm: ThreadCommunicator) -> list[str]:
        rank, size = comm.topology.rank, comm.topology.size
        comm.topology = replace(comm.topology, local_rank=0, local_size=1, node_rank=rank, num_nodes=size)
        return hosts_that_see_another(folders[rank], comm, continues)

    return all_well(run_on_ranks(len(folders), work))


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setattr(shared_folder, "_SECONDS", 0.2)
    made = [tmp_path / name for name in ("first", "second")]
    for folder in made:
        folder.mkdir()
    return made


def test_hosts_with_a_folder_of_their_own_are_named_on_all_ranks(folders: list[Path]) -> None:
    first, second = folders
    name = os.uname().nodename
    assert looked([first, first, first]) == [[], [], []]
    assert looked([first, second, first]) == [[name]] * 3
    assert [list(folder.iterdir()) for folder in folders] == [[], []], "nothing stays"


def test_no_run_begins_again_that_another_host_has_a_checkpoint_of(folders: list[Path]) -> None:
    first, second = folders
    (second / "checkpoints" / "step_00000007").mkdir(parents=True)
    (second / "checkpoints" / "step_00000007" / "manifest.json").write_text("{}")
    with pytest.raises(UsageError, match="has a checkpoint in .*, and rank 0 on .* sees none there") as caught:
        looked([first, second])
    assert caught.value.joint
    assert len(looked([first, second], continues=False)[0]) == 1, "a new run, or one from a checkpoint that is named"
    shutil.copytree(second / "checkpoints", first / "checkpoints")
    assert len(looked([first, second])[0]) == 1, "rank 0 has its own"


def test_containers_with_disks_of_their_own_are_left_alone(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SM_HOSTS", '["algo-1", "algo-2"]')
    assert looked(folders) == [[], []]
