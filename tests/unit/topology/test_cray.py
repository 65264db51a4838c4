"""Cray's launchers without PMI: PALS (`mpiexec`) and ALPS (`aprun`) tell a rank and no size."""

from __future__ import annotations

import pytest

from hvdtrain.errors import UsageError
from hvdtrain.topology import detect_topology, explain

PALS = {"PALS_RANKID": "3", "PALS_NODEID": "1", "PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "2"}
ALPS = {"ALPS_APP_PE": "3"}


@pytest.mark.parametrize(
    ("env", "platform", "variable"), [(PALS, "Cray PALS", "PALS_RANKID"), (ALPS, "Cray ALPS", "ALPS_APP_PE")]
)
def test_a_rank_without_a_size_is_refused(env: dict[str, str], platform: str, variable: str) -> None:
    with pytest.raises(UsageError) as caught:
        detect_topology(env)
    assert caught.value.fact == f"{variable}=3 numbers this process among others, but no variable tells how many."
    assert caught.value.conflict == "Each of these processes would train a model of its own."
    assert "HOROVOD_RANK=0 and HOROVOD_SIZE=1" in caught.value.hint
    seen = [(item.platform, item.used, item.why) for item in explain(env)]
    assert seen == [(platform, False, f"stops here: {caught.value.fact} {caught.value.conflict}")]


@pytest.mark.parametrize("env", [PALS, ALPS])
@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "2"}, ("pmi", 3, 4, 1, 2)),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, ("torchrun", 3, 4, 1, 2)),
        ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"}, ("horovodrun", 0, 1, 0, 1)),
    ],
)
def test_who_tells_the_size_decides(
    env: dict[str, str], told: dict[str, str], expected: tuple[str, int, int, int, int]
) -> None:
    t = detect_topology(env | told)
    assert (t.launcher, t.rank, t.size, t.local_rank, t.local_size) == expected
