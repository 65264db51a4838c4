"""Facts of this machine, of folders made for the test, and of frameworks that crash, hang or are not there."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from hvdtrain.doctor.framework_probe import loaded_mpi
from hvdtrain.doctor.job_environment import environment_facts, job_command
from hvdtrain.doctor.machine import machine_facts, memory_limit, output_facts, parse_devices
from hvdtrain.doctor.network import interfaces, resolved_names
from hvdtrain.doctor.shared_files import data_facts
from hvdtrain.doctor.software import framework_facts
from hvdtrain.topology.control_group import core_quota, usable_cores

ROOT = Path(__file__).parents[3]


def test_this_machine() -> None:
    found = machine_facts("runs/none")
    assert found["cores"]["allowed"] == len(os.sched_getaffinity(0))
    assert 0 < found["memory"]["available"] <= found["memory"]["total"]
    assert found["limits"]["nofile"] == list(resource.getrlimit(resource.RLIMIT_NOFILE))
    assert found["output"]["path"] == str(Path("runs/none").absolute())
    assert Path(found["output"]["folder"]).is_dir()


def test_what_is_no_folder_is_in_the_way_of_the_output(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for name, obstacle in (("file", "file"), ("file/a/b", "file"), ("link", "link"), ("new/a", None), ("", None)):
        found = output_facts(str(tmp_path / name))
        assert found["folder"] == str(tmp_path)
        assert found["obstacle"] == (None if obstacle is None else str(tmp_path / obstacle)), name


def test_loopback_is_an_interface() -> None:
    (loopback,) = [own for own in interfaces() if own["name"] == "lo"]
    assert loopback["address"] == "127.0.0.1"
    assert loopback["network"] == "127.0.0.0/8"
    assert loopback["virtual"]


def test_names() -> None:
    found = resolved_names(["localhost", "no-such-host.invalid"])
    assert found["localhost"] == ["127.0.0.1"]
    assert isinstance(found["no-such-host.invalid"], str)


def group(root: Path, line: str, files: dict[str, str]) -> Path:
    """A root folder with /proc/self/cgroup and control files."""
    for name, text in {"proc/self/cgroup": line, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def test_limits_of_control_groups_version_2(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/a/b/cpu.max": "max 100000",
        "sys/fs/cgroup/a/cpu.max": "250000 100000",
        "sys/fs/cgroup/a/b/memory.max": "1073741824",
        "sys/fs/cgroup/a/memory.max": "max",
    }
    root = group(tmp_path, "0::/a/b", files)
    assert core_quota(root) == 2.5
    assert [usable_cores(cores, root) for cores in (1, 2, 64)] == [1, 2, 2]
    assert memory_limit(root) == 2**30


def test_limits_of_control_groups_version_1(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_quota_us": "50000",
        "sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_period_us": "100000",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
    }
    root = group(tmp_path, "4:cpu,cpuacct:/c\n3:memory:/c", files)
    assert core_quota(root) == 0.5
    assert usable_cores(64, root) == 1
    assert memory_limit(root) is None


def test_no_limits(tmp_path: Path) -> None:
    assert core_quota(tmp_path) is None
    assert usable_cores(64, tmp_path) == 64
    assert memory_limit(tmp_path) is None


def test_a_fingerprint_tells_trees_apart(tmp_path: Path) -> None:
    def tree(name: str, **files: str) -> str:
        folder = tmp_path / name
        (folder / "sub").mkdir(parents=True)
        for file, text in files.items():
            (folder / "sub" / file).write_text(text)
        (found,) = data_facts([str(folder)], 10.0)
        assert found["error"] is None
        assert found["files"] == len(files)
        return str(found["fingerprint"])

    one = tree("one", x="12", y="3")
    assert tree("same", y="3", x="12") == one
    assert len({one, tree("longer", x="123", y="3"), tree("renamed", x="12", z="3"), tree("fewer", x="12")}) == 4


def test_data_by_glob_by_file_and_not_there(tmp_path: Path) -> None:
    (tmp_path / "train-1").write_text("12")
    (tmp_path / "train-2").write_text("34")
    found = data_facts([f"{tmp_path}/train-*", f"{tmp_path}/train-1", f"{tmp_path}/none", "s3://bucket/x"], 10.0)
    assert [(one["files"], one["bytes"]) for one in found] == [(2, 4), (1, 2), (0, 0)]
    assert found[2]["error"] == f"{tmp_path}/none: No such file or directory"
    (late,) = data_facts([f"{tmp_path}/train-*"], -1.0)
    assert not late["whole"]


@pytest.mark.parametrize("name", ["a*b", "[2024] set"])
def test_a_data_folder_that_exists_is_literal(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, content in ((name, "12"), ("azzb", "345")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train-1").write_text(content)
    monkeypatch.chdir(tmp_path)
    found = data_facts([f"{tmp_path}/{name}/train-*", f"{name}/train-*", "*/train-1"], 10.0)
    assert [(one["files"], one["bytes"]) for one in found] == [(1, 2), (1, 2), (2, 5)]


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("python -m hvdtrain", "hvdtrain train"),
        ("/opt/bin/python3.11 -P -m hvdtrain train --lr 1", "hvdtrain train"),
        ("python /opt/bin/hvdtrain --epochs 3", "hvdtrain train"),
        ("/opt/bin/hvdtrain launch local -np 2 -- train", "hvdtrain launch"),
        ("python -m hvdtrain doctor", None),
        ("python -m hvdtrain.doctor.host_agent", None),
        ("python -m pytest hvdtrain", None),
        ("python train.py hvdtrain", None),
        ("horovodrun -np 2 python -m hvdtrain", None),
        ("ssh host2 python -m hvdtrain", None),
        ("grep hvdtrain", None),
        ("", None),
    ],
)
def test_which_processes_are_jobs(line: str, command: str | None) -> None:
    assert job_command(line.split()) == command


def test_variables_without_secrets() -> None:
    found = environment_facts(
        {"NCCL_DEBUG": "INFO", "HVDTRAIN_SECRET": "s3cret", "HOME": "/root", "AWS_SECRET_ACCESS_KEY": "s3cret"}
    )
    assert found == {"NCCL_DEBUG": "INFO", "HVDTRAIN_SECRET": "(set)"}


def test_what_nvidia_smi_says() -> None:
    text = "0, NVIDIA H100 80GB HBM3, 550.54.15, 81559, 4\n1, NVIDIA H100 80GB HBM3, 550.54.15, [N/A], [N/A]\nbroken\n"
    first, second = parse_devices(text)
    assert first == {"index": "0", "name": "NVIDIA H100 80GB HBM3", "driver": "550.54.15", "memory": 81559, "used": 4}
    assert second["used"] == 0


def test_the_mpi_that_a_process_has_loaded() -> None:
    maps = (
        "7f00-7f01 r-xp 00000000 08:01 131 /lib/x86_64-linux-gnu/libc.so.6\n"
        "7f02-7f03 rw-p 00000000 00:00 0 \n"
        "7f04-7f05 r-xp 00000000 08:01 132 /opt/my mpi/lib/libmpi.so.40.30.1\n"
    )
    assert loaded_mpi(maps) == "/opt/my mpi/lib/libmpi.so.40.30.1"
    assert loaded_mpi("7f00-7f01 r-xp 00000000 08:01 131 /lib/libmpi_mpifh.so.40\n") is None


@pytest.mark.parametrize(
    ("body", "seconds", "said"),
    [
        ("raise ImportError('no libcudart.so.13')", 60.0, "exit code 1: ImportError: no libcudart.so.13"),
        ("import os; os.kill(os.getpid(), 11)", 60.0, "signal 11"),
        ("import time; time.sleep(60)", 1.0, "took more than 1 s"),
    ],
)
def test_an_import_that_fails_is_a_fact(
    body: str, seconds: float, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text(body + "\n")
    (tmp_path / "torch-9.9.dist-info").mkdir()
    (tmp_path / "torch-9.9.dist-info" / "METADATA").write_text("Name: torch\nVersion: 9.9\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    found = framework_facts(["torch"], seconds)
    assert said in found["torch"]["error"]


def test_facts_need_nothing_but_python(tmp_path: Path) -> None:
    """-S: without site-packages, as on a host where nothing was installed yet."""
    done = subprocess.run(
        [sys.executable, "-S", "-m", "hvdtrain.doctor.host_facts"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["frameworks"] == {}
    assert facts["software"]["versions"]["torch"] is None
    assert facts["working_dir"] == str(tmp_path)
