"""What hvdtrain sets before Horovod and Open MPI start, and what it leaves as the user has it."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from hvdtrain.comm import horovod_world
from hvdtrain.comm.open import stall_limit_of_script
from hvdtrain.errors import UsageError


def test_what_the_user_has_set_stays() -> None:
    chosen = {
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "7",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "9",
        "OMPI_MCA_mpi_yield_when_idle": "0",
        "HOROVOD_CYCLE_WAKE": "",
        "HOROVOD_FUSION_THRESHOLD": "1",
        "OMPI_MCA_btl": "self,tcp",
    }
    environ = dict(chosen)
    horovod_world.set_defaults(environ, stall_timeout=600)
    assert environ == chosen


@pytest.mark.parametrize(
    ("chosen", "is_told"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, True),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, False),  # one host
        ({}, False),  # no Open MPI
        (
            {
                "OMPI_COMM_WORLD_SIZE": "4",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
                "OMPI_MCA_coll_tuned_allreduce_algorithm": "3",
            },
            False,
        ),
    ],
)
def test_open_mpi_is_told_of_the_ring_where_messages_cross_hosts(chosen: dict[str, str], is_told: bool) -> None:
    environ = dict(chosen)
    horovod_world.set_defaults(environ, stall_timeout=600)
    assert (environ.get("OMPI_MCA_coll_tuned_use_dynamic_rules") == "1") is is_told
    rules = environ.get("OMPI_MCA_coll_tuned_dynamic_rules_filename")
    assert rules is None or Path(rules).is_file()


@pytest.mark.parametrize(("devices", "expected"), [("mem", None), ("no-such-devices", "^ofi")])
def test_open_mpi_looks_for_a_fabric_where_there_is_one(
    devices: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/sys/class/mem, of /dev/null, is on every Linux."""
    monkeypatch.setattr(horovod_world, "_FABRICS", (devices,))
    environ: dict[str, str] = {}
    horovod_world.set_defaults(environ, stall_timeout=600)
    assert environ.get("OMPI_MCA_btl") == expected


@pytest.mark.parametrize(("text", "seconds"), [(None, 300.0), ("40", 40.0), ("0", math.inf)])
def test_a_script_may_set_the_stall_limit(monkeypatch: pytest.MonkeyPatch, text: str | None, seconds: float) -> None:
    """0 is Horovod's word for none."""
    monkeypatch.setattr(os, "environ", {} if text is None else {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": text})
    assert stall_limit_of_script() == seconds
    # Horovod checks nothing where the limit is shorter than the time to the warning.
    assert os.environ["HOROVOD_STALL_CHECK_TIME_SECONDS"] == ("20" if text == "40" else "60")


@pytest.mark.parametrize("text", ["", "abc", "-1", "2.5"])
def test_a_stall_limit_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(os, "environ", {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": text})
    with pytest.raises(UsageError, match="whole seconds"):
        stall_limit_of_script()
