"""Counters are read from files as Linux writes them, of both versions of control groups, and none is needed."""

from __future__ import annotations

from pathlib import Path

from hvdtrain.slowness.gauge import Linux

_TICKS = 100  # a second, as on all Linux of today


def host(root: Path, files: dict[str, str]) -> Linux:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return Linux(root)


def own_stat(major_faults: int, disk_ticks: int) -> str:
    fields = ["0"] * 50
    fields[0], fields[9], fields[39] = "R", str(major_faults), str(disk_ticks)
    return f"123 (a (strange) name) {' '.join(fields)}\n"


PROC = {
    "proc/self/stat": own_stat(7, 250),
    "proc/self/io": "rchar: 99\nread_bytes: 4096\ncancelled_write_bytes: 0\n",
    "proc/self/task/5/schedstat": "4000000000 2000000000 3\n",
    "proc/self/task/12/schedstat": "1000000000 500000000 3\n",
    "proc/stat": "cpu  100 50 25 9000 800 5 10 20 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\nintr 5\n",
    "proc/vmstat": "pswpinx 3\npswpin 42\npswpout 1\n",
    "proc/pressure/io": "some avg10=0.00 avg60=0.00 avg300=0.00 total=3000000\nfull avg10=0.00 total=7\n",
    "proc/pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=500000\nfull avg10=0.00 total=7\n",
}


def test_the_counters_of_a_process_and_its_host(tmp_path: Path) -> None:
    counts = host(tmp_path, PROC).read()
    assert counts.threads == {5: (4.0, 2.0), 12: (1.0, 0.5)}
    assert (counts.totals["busy"], counts.totals["stolen"]) == (210 / _TICKS, 20 / _TICKS)
    assert (counts.totals["major_faults"], counts.totals["disk_wait"]) == (7, 2.5)
    assert (counts.totals["swapped"], counts.totals["read_bytes"]) == (42, 4096)
    assert (counts.totals["io_stall"], counts.totals["memory_stall"]) == (3.0, 0.5)
    assert counts.totals["throttled"] == 0


def test_throttling_by_a_group_of_version_1_and_by_its_parent(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:cpu,cpuacct:/jobs/one\n3:memory:/elsewhere\n",
        "sys/fs/cgroup/cpu,cpuacct/jobs/one/cpu.stat": "nr_periods 9\nnr_throttled 3\nthrottled_time 1500000000\n",
        "sys/fs/cgroup/cpu,cpuacct/jobs/cpu.stat": "nr_periods 9\nnr_throttled 3\nthrottled_time 500000000\n",
        "sys/fs/cgroup/memory/elsewhere/cpu.stat": "throttled_time 9000000000\n",
    }
    assert host(tmp_path, files).read().totals["throttled"] == 2.0


def test_throttling_and_stalls_of_a_group_of_version_2(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/jobs/one"
    files = {
        **PROC,
        "proc/self/cgroup": "0::/jobs/one\n",
        f"{group}/cpu.stat": "usage_usec 5\nnr_throttled 3\nthrottled_usec 1500000\n",
        f"{group}/io.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\n",
    }
    counts = host(tmp_path, files).read()
    assert counts.totals["throttled"] == 1.5
    assert counts.totals["io_stall"] == 1.0  # the group's own, not the host's
    assert counts.totals["memory_stall"] == 0.5


def test_a_host_that_shows_nothing_or_nonsense(tmp_path: Path) -> None:
    empty = host(tmp_path / "empty", {}).read()
    nonsense = {name: "?? \n" for name in PROC} | {"proc/self/cgroup": "0::/\n"}
    for counts in (empty, host(tmp_path / "nonsense", nonsense).read()):
        assert set(counts.threads.values()) <= {(0.0, 0.0)}
        assert len(counts.totals) == 9
        assert set(counts.totals.values()) == {0}


def test_this_host_is_read() -> None:
    counts = Linux().read()
    assert counts.totals["busy"] > 0
    assert counts.threads
