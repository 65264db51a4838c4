"""The emulated hosts themselves: separate, connected, and gone afterwards."""

from __future__ import annotations

import pytest
from emulated_hosts import EmulatedHosts
from emulated_slurm import EmulatedSlurm
from support.processes import wait_until


def test_hosts_have_names_processes_and_addresses_of_their_own(hosts: EmulatedHosts) -> None:
    for here, there in (("host1", "host2"), ("host2", "host1")):
        done = hosts.run(here, ["ssh", there, "hostname && ip -4 -brief address show eth0 && cat /proc/1/cmdline"], 10)
        assert done.returncode == 0, done.tail()
        assert done.stdout.startswith(f"{there}\n")
        assert hosts.address(there) in done.stdout
        assert "host_init.py" in done.stdout


def test_temporary_files_are_a_hosts_own(hosts: EmulatedHosts) -> None:
    made = hosts.run("host1", ["mktemp"], 10).stdout.strip()
    assert hosts.run("host1", ["test", "-f", made], 10).returncode == 0
    assert hosts.run("host2", ["test", "-e", made], 10).returncode == 1
    over_ssh = hosts.run("host1", ["ssh", "host2", "mktemp"], 10).stdout.strip()
    assert hosts.run("host2", ["test", "-f", over_ssh], 10).returncode == 0
    assert hosts.run("host1", ["test", "-e", over_ssh], 10).returncode == 1


def test_what_runs_on_a_host_is_seen_and_swept(hosts: EmulatedHosts) -> None:
    spawned = hosts.spawn("host2", ["sleep", "60"])
    wait_until("it runs", lambda: bool(hosts.left_over()), 10)
    with pytest.raises(AssertionError, match="sleep 60"):
        hosts.wait_until_quiet(0.5)
    assert list(hosts.left_over()) == ["host2"]
    hosts.sweep()
    assert spawned.wait(5).returncode == -9


def test_links_break_and_heal(hosts: EmulatedHosts) -> None:
    ssh = ["ssh", "-o", "ConnectTimeout=1", "host2", "true"]
    for breaks in (hosts.drop_packets, hosts.unplug):
        breaks("host2")
        assert "timed out" in hosts.run("host1", ssh, 10).stderr
        hosts.restore()
        assert hosts.run("host1", ssh, 10).returncode == 0


def test_slurm_runs_steps_on_both_hosts(slurm: EmulatedSlurm) -> None:
    done = slurm.run(["srun", "--nodes=2", "hostname"])
    assert sorted(done.stdout.split()) == ["host1", "host2"], done.tail()
