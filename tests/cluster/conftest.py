"""Emulated hosts and a Slurm on them, for every test here; tests are skipped where this machine cannot have them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Tests are imported by file, so their helpers need a folder to be found in.
_EMULATION = str(Path(__file__).parent / "emulation")
if _EMULATION not in sys.path:
    sys.path.insert(0, _EMULATION)

from emulated_hosts import EmulatedHosts  # noqa: E402
from emulated_slurm import KILL_WAIT_SECONDS, EmulatedSlurm  # noqa: E402
from requirements import obstacle  # noqa: E402
from slot import taken_slot  # noqa: E402


@pytest.fixture(scope="session")
def emulated_hosts() -> Iterator[EmulatedHosts]:
    """host1 and host2, for fixtures that tests share; tests themselves ask for `hosts`."""
    if reason := obstacle():
        pytest.skip(reason)
    with taken_slot() as slot:
        cluster = EmulatedHosts(slot, 2)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


@pytest.fixture
def hosts(emulated_hosts: EmulatedHosts) -> Iterator[EmulatedHosts]:
    """host1 and host2, as new: nothing runs on them. Afterwards, too: what a test leaves running fails it."""
    emulated_hosts.wait_until_quiet()
    try:
        yield emulated_hosts
        emulated_hosts.wait_until_quiet()
    finally:
        emulated_hosts.sweep()
        emulated_hosts.restore()


@pytest.fixture(scope="session")
def three_emulated_hosts() -> Iterator[EmulatedHosts]:
    """host1, host2 and host3, for `three`."""
    if reason := obstacle():
        pytest.skip(reason)
    with taken_slot() as slot:
        cluster = EmulatedHosts(slot, 3)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


@pytest.fixture
def three(three_emulated_hosts: EmulatedHosts) -> Iterator[EmulatedHosts]:
    """host1, host2 and host3, as `hosts` has two."""
    try:
        yield three_emulated_hosts
        three_emulated_hosts.wait_until_quiet()
    finally:
        three_emulated_hosts.sweep()
        three_emulated_hosts.restore()


@pytest.fixture(scope="session")
def emulated_slurm(emulated_hosts: EmulatedHosts) -> EmulatedSlurm:
    """Slurm on both hosts, for fixtures that tests share; tests themselves ask for `slurm`."""
    cluster = EmulatedSlurm(emulated_hosts)
    cluster.start()
    return cluster


@pytest.fixture
def slurm(emulated_slurm: EmulatedSlurm, hosts: EmulatedHosts) -> Iterator[EmulatedSlurm]:
    """Slurm on both hosts, without a job in it; afterwards, jobs are cancelled."""
    try:
        yield emulated_slurm
    finally:
        emulated_slurm.cancel_all()
        hosts.wait_until_quiet(2 * KILL_WAIT_SECONDS)
