"""Hosts that cannot be used are refused before anything starts, with the host's name, the cause, and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from emulated_hosts import EmulatedHosts
from ssh_files import make_key
from support.processes import Finished
from training import ACROSS, HOSTS

SECONDS, TRAINING_SECONDS = 30, 150


@dataclass(frozen=True)
class Fault:
    """One way in which a host cannot be used.

    Attributes:
        message: what the refusal says of the host.
        hint: what it tells to do.
        break_it: does it to host2.
        flags: of `hvdtrain launch horovodrun`.
    """

    message: str
    hint: str
    break_it: Callable[[EmulatedHosts], None] = lambda _hosts: None
    flags: tuple[str, ...] = ("-H", HOSTS)


def refuse_the_key(hosts: EmulatedHosts) -> None:
    """host2 knows no key of host1."""
    (hosts.ssh_folder("host2") / "authorized_keys").write_text("")


def change_the_host_key(hosts: EmulatedHosts) -> None:
    """host1 knows host2 by another key than it has."""
    known = hosts.ssh_folder("host1") / "known_hosts"
    kept = [line for line in known.read_text().splitlines() if not line.startswith("host2")]
    other = make_key(hosts.ssh_folder("host1") / "other")
    known.write_text("\n".join([*kept, f"host2,{hosts.address('host2')} {other}"]) + "\n")


def forget_the_host_key(hosts: EmulatedHosts) -> None:
    """host1 has never seen host2."""
    known = hosts.ssh_folder("host1") / "known_hosts"
    known.write_text("".join(line for line in known.read_text().splitlines(True) if not line.startswith("host2")))


FAULTS = {
    "name": Fault("host9: its name does not resolve", "/etc/hosts", flags=("-H", "host1:1,host9:1")),
    "packets": Fault(
        "host2: it cannot be reached",
        "firewall",
        lambda hosts: hosts.drop_packets("host2"),
        ("-H", HOSTS, "--start-timeout", "4"),
    ),
    "port": Fault("host2: nothing listens", "--ssh-port", flags=("-H", HOSTS, "--ssh-port", "23")),
    "key": Fault("host2: it refuses your key", "ssh-copy-id host2", refuse_the_key),
    "host key": Fault("host2: its host key is not the one", "ssh-keygen -R host2", change_the_host_key),
    "new host": Fault("host2: its host key is not known", "`ssh host2`", forget_the_host_key),
    "python": Fault("host2: it has no /no/python", "--python", flags=("-H", HOSTS, "--python", "/no/python")),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_host_that_cannot_be_used_is_refused_with_its_cause(hosts: EmulatedHosts, fault: Fault) -> None:
    fault.break_it(hosts)
    done = hosts.run("host1", ["hvdtrain", "launch", "horovodrun", *fault.flags, "--", "train"], SECONDS)
    assert done.returncode == 2, done.tail()
    said, hint = done.stderr.split("HINT: ")
    assert f"1 of 2 hosts cannot be used: {fault.message}" in said, done.tail()
    assert fault.hint in hint
    assert "Traceback" not in done.output


def test_mpirun_is_preceded_by_the_same_look(hosts: EmulatedHosts) -> None:
    refuse_the_key(hosts)
    done = hosts.run("host1", [*ACROSS["mpirun"], "--max-steps", "3"], SECONDS)
    assert (done.returncode, "host2: it refuses your key" in done.stderr) == (2, True), done.tail()


def test_all_hosts_are_asked_at_once_and_found_out_in_order(hosts: EmulatedHosts, tmp_path: Path) -> None:
    refuse_the_key(hosts)
    silent = [hosts.slot.address(200 + i) for i in range(3)]
    script = tmp_path / "check.py"
    script.write_text(
        "import json, sys, time\n"
        "from hvdtrain.launch.ssh.check import check_hosts\n"
        "began = time.monotonic()\n"
        "found = check_hosts(sys.argv[1:], deadline_s=4)\n"
        "print(json.dumps([time.monotonic() - began, [[finding.host, finding.message] for finding in found]]))\n"
    )
    done = hosts.run("host1", ["python", str(script), "host1", *silent, "host2", "host9"], SECONDS)
    assert done.returncode == 0, done.tail()
    seconds, found = json.loads(done.stdout)
    expected = {**dict.fromkeys(silent, "no answer within"), "host2": "refuses your key", "host9": "does not resolve"}
    assert [host for host, _ in found] == [*expected]
    assert all(expected[host] in message or "cannot be reached" in message for host, message in found), found
    assert seconds < 8  # one after the other, the silent ones alone would take 9 to 12


def test_a_run_folder_that_hosts_do_not_share_is_said_to_be_so_and_no_run_begins_again(hosts: EmulatedHosts) -> None:
    """host1 has the checkpoint of a run that goes on with rank 0 on host2."""
    folder = "/run/tmp/run"  # on a disk of each host

    def train(first: str, other: str, steps: int) -> Finished:
        where = ["-H", f"{first}:1,{other}:1"]
        job = ["train", "--max-steps", str(steps), "--output-dir", folder, "--progress", "none"]
        return hosts.run("host1", ["hvdtrain", "launch", "ssh", *where, "--", *job], TRAINING_SECONDS)

    done = train("host1", "host2", 10)
    assert done.returncode == 0, done.tail()
    assert f"{folder} is not shared by the hosts: host2 sees another folder." in " ".join(done.stderr.split())
    done = train("host2", "host1", 20)
    assert done.returncode == 2, done.tail()
    assert f"host1 has a checkpoint in {folder}, and rank 0 on host2 sees none there." in " ".join(done.stderr.split())
