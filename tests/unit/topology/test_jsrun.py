"""Processes of IBM's jsrun, where it tells them their places by its own variables only."""

from __future__ import annotations

import pytest

from hvdtrain.errors import UsageError
from hvdtrain.topology import detect_topology, explain

JSRUN = {
    "JSM_NAMESPACE_RANK": "4",
    "JSM_NAMESPACE_SIZE": "6",
    "JSM_NAMESPACE_LOCAL_RANK": "1",
    "JSM_NAMESPACE_LOCAL_SIZE": "3",
}


def test_a_process_of_jsrun_knows_its_place() -> None:
    t = detect_topology(JSRUN)
    assert (t.rank, t.size, t.local_rank, t.local_size, t.launcher) == (4, 6, 1, 3, "jsrun")
    assert (t.node_rank, t.num_nodes, t.hosts) == (1, 2, ())
    assert t.source["size"] == "JSM_NAMESPACE_SIZE=6"
    assert t.source["num_nodes"].startswith("assumed: ")


def test_pmix_under_jsrun_needs_no_size_of_its_own() -> None:
    assert detect_topology(JSRUN | {"PMIX_RANK": "4"}).size == 6


@pytest.mark.parametrize(
    ("inner", "platform"),
    [
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, "Open MPI"),
        ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"}, "Horovod"),
        ({"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "1"}, "torchrun"),
    ],
)
def test_launchers_inside_jsrun_decide(inner: dict[str, str], platform: str) -> None:
    t = detect_topology(JSRUN | inner)
    assert (t.rank, t.size) == (1, 2)
    assert [item.platform for item in explain(JSRUN | inner) if item.used] == [platform]


def test_without_its_size_it_is_refused() -> None:
    with pytest.raises(UsageError, match=r"jsrun variables are set .*, but not JSM_NAMESPACE_SIZE"):
        detect_topology({name: value for name, value in JSRUN.items() if name != "JSM_NAMESPACE_SIZE"})
