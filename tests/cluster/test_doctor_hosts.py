"""`hvdtrain doctor -H host1,host2,host3`: what is wrong on one host, or between two, is found and named."""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from emulated_hosts import EmulatedHosts
from ssh_files import make_key

ROOT = Path(__file__).parents[2]
DEADLINE = 240.0
RATE_MBIT = 100


def examine(hosts: EmulatedHosts, flags: Sequence[str], cwd: Path) -> dict[str, Any]:
    """The JSON report of the doctor on host1, whose exit code says what its status says."""
    argv = [sys.executable, "-m", "hvdtrain", "doctor", "-H", ",".join(hosts.names), "--json", *flags]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = hosts.run("host1", argv, DEADLINE, {"PYTHONPATH": path}, cwd)
    assert done.stdout.startswith("{"), done.tail()
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == int(report["status"] == "fail"), done.tail()
    return report


def wrong(report: dict[str, Any], name: str, host: str = "") -> list[str]:
    """Status and fact of what a check did not like."""
    found = [f for f in report["findings"] if f["name"] == name and f["status"] != "ok" and f["host"] == host]
    assert all(finding["hint"] for finding in found), found
    return [f"{finding['status']}: {finding['fact']}" for finding in found]


def test_good_hosts_are_examined_and_measured(three: EmulatedHosts, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "records").write_bytes(bytes(1000))
    flags = ["--framework", "torch", "--output-dir", str(tmp_path), "--data", str(tmp_path / "data"), "--seconds", "1"]
    report = examine(three, flags, tmp_path)
    assert report["status"] != "fail", report["findings"]
    seen = {finding["name"] for finding in report["findings"]}
    wanted = {"versions", "ssh", "host names", "clock", "network", "ports", "links", "data", "output folder"}
    assert wanted <= seen
    assert (report["allreduce"]["workers"], sorted(report["allreduce"]["hosts"])) == (3, list(three.names))
    assert {(link["from"], link["to"]) for link in report["links"]} == {
        (a, b) for a in three.names for b in three.names if a != b
    }
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_what_is_wrong_on_one_host_is_named(three: EmulatedHosts, tmp_path: Path) -> None:
    """Another MTU, a route that is blocked, an output folder and data of its own, a name that means loopback."""
    for folder in ("own", "out", "data", "elsewhere"):
        (tmp_path / folder).mkdir()
    (tmp_path / "data" / "records").write_bytes(bytes(1000))
    names = tmp_path / "hosts"
    others = "".join(f"{three.address(host)} {host}\n" for host in ("host1", "host2"))
    names.write_text(f"127.0.0.1 localhost\n127.0.1.1 host3\n{others}")
    three.bind("host3", tmp_path / "own", tmp_path / "out")
    three.bind("host3", tmp_path / "elsewhere", tmp_path / "data")
    three.bind("host3", names, Path("/etc/hosts"))
    block = ["blackhole", f"{three.address('host2')}/32"]
    for change in (["link", "set", "eth0", "mtu", "1300"], ["route", "add", *block]):
        done = three.run("host3", ["ip", *change], 10)
        assert done.returncode == 0, done.tail()
    flags = ["--framework", "torch", "--output-dir", str(tmp_path / "out")]
    try:
        report = examine(three, [*flags, "--data", str(tmp_path / "data")], tmp_path)
    finally:
        for target in (tmp_path / "out", tmp_path / "data", Path("/etc/hosts")):
            three.unbind("host3", target)
        for change in (["link", "set", "eth0", "mtu", "1500"], ["route", "del", *block]):
            three.run("host3", ["ip", *change], 10)
    assert report["status"] == "fail"
    assert [
        text for text in wrong(report, "network") if text.startswith("warn: the MTU is") and "1300 on host3" in text
    ]
    (folder,) = wrong(report, "output folder")
    assert folder.startswith("fail: host1 does not see in")
    assert folder.endswith("what host3 writes there")
    assert wrong(report, "data", "host3") == [f"fail: {tmp_path / 'data'}: there are no files"]
    assert wrong(report, "host names", "host3") == ["warn: its own name host3 resolves to 127.0.1.1"]
    ports = wrong(report, "ports")
    assert [text.partition(": ")[2].partition(":")[0] for text in ports] == [
        "host2 does not reach host3",
        "host3 does not reach host2",
    ]
    assert report["allreduce"] is None


def test_hosts_that_ssh_does_not_reach_are_told_apart(three: EmulatedHosts, tmp_path: Path) -> None:
    known = three.ssh_folder("host1") / "known_hosts"
    other = make_key(tmp_path / "other")
    lines = [
        f"host2,{three.address('host2')} {other}" if "host2" in line else line
        for line in known.read_text().splitlines()
    ]
    known.write_text("\n".join(lines) + "\n")
    (three.ssh_folder("host3") / "authorized_keys").write_text("")
    report = examine(three, ["--framework", "torch"], tmp_path)
    assert report["status"] == "fail"
    (changed,), (refused,) = wrong(report, "ssh", "host2"), wrong(report, "ssh", "host3")
    assert "its host key is not the one that is known here" in changed
    assert "it refuses your key" in refused
    assert report["allreduce"] is None
    assert list(report["facts"]) == ["host1"]


def test_the_slow_link_is_named(three: EmulatedHosts, tmp_path: Path) -> None:
    """What host3 sends is limited: both of its outgoing links are slow, and the ring is as slow as they are."""
    three.shape("host3", f"{RATE_MBIT}mbit")
    # Few sizes, the large ones: what the limit lets through at once (256 kB) must not count.
    report = examine(three, ["--framework", "torch", "--sizes", "64KiB,4MiB,16MiB", "--seconds", "4"], tmp_path)
    (link,) = wrong(report, "links")
    assert link.startswith("warn: from host3 to all others: "), report["links"]
    limit = RATE_MBIT * 1e6 / 8
    slow = [one["bytes_per_second"] for one in report["links"] if one["from"] == "host3"]
    assert statistics.median(slow) == pytest.approx(limit, rel=0.25)
    # A ring also waits for the three hosts' processes, which share this machine's cores with other tests.
    assert 0.4 * limit < report["allreduce"]["model"]["bandwidth"] < 1.25 * limit
