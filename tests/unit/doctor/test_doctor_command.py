"""`hvdtrain doctor` as users call it: wrong calls, folders that are broken or missing, nothing installed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
DEADLINE_S = 200.0


def call(
    argv: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None, *python: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *python, "-m", "hvdtrain", *argv],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
        timeout=DEADLINE_S,
        check=False,
    )


def of_status(report: dict[str, Any], status: str) -> list[dict[str, str]]:
    return [finding for finding in report["findings"] if finding["status"] == status]


REFUSED = {
    "an option": (["--host", "a"], "unrecognized arguments: --host a"),
    "a host": (["-H", "a;touch x"], "is not a host name"),
    "an option of ssh": (["-H", "-oProxyCommand=touch x:1"], "begins with - would be read as an option of ssh"),
    "an interface": (["--nic", "eth0;x"], "The network interface is called"),
    "no workers": (["-np", "0"], "-np is 0."),
    "too many workers": (["-H", "a:1", "-np", "2"], "Its hosts have 1 slots"),
    "a size": (["--sizes", "5"], "not float32 values"),
    "a time": (["--seconds", "nan"], "is not a time"),
    "a port": (["--ssh-port", "99999"], "--ssh-port is 99999"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_calls_end_with_2_and_examine_nothing(case: str, tmp_path: Path) -> None:
    argv, fact = REFUSED[case]
    done = call(["doctor", *argv], tmp_path)
    assert done.returncode == 2, done
    assert fact in done.stderr
    assert "\nHINT: " in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("argv", "fact"),
    [
        (["allreduce"], "This is the only worker."),
        (["allredcue"], "did you mean 'allreduce'?"),
        (["allreduce", "-x"], "-x"),
    ],
)
def test_wrong_calls_of_bench(argv: list[str], fact: str, tmp_path: Path) -> None:
    done = call(["bench", *argv], tmp_path)
    assert done.returncode == 2, done
    assert fact in done.stderr


@pytest.mark.parametrize(
    ("package", "binding", "fact"),
    [
        ("raise ImportError('no libmpi.so.40')", None, "horovod cannot be imported: no libmpi.so.40"),
        ("", "raise ImportError('no libmpi.so.40')", "horovod.torch cannot be imported: no libmpi.so.40"),
    ],
)
def test_bench_tells_a_horovod_that_breaks_from_one_that_was_not_built(
    package: str, binding: str | None, fact: str, tmp_path: Path
) -> None:
    for module, text in (("horovod", package), ("horovod/torch", binding)):
        if text is not None:
            (tmp_path / module).mkdir()
            (tmp_path / module / "__init__.py").write_text(text + "\n")
            (tmp_path / module / "mpi_lib_v2.so").write_text("")
    places = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    path = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = call(["bench", "allreduce"], tmp_path, places | meeting | path)
    assert done.returncode == 2, done
    assert fact in done.stderr
    assert "HINT: see `hvdtrain doctor`" in done.stderr
    assert "install torch" not in done.stderr


def test_it_refuses_to_run_in_every_rank(tmp_path: Path) -> None:
    done = call(["doctor"], tmp_path, {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"})
    assert done.returncode == 2
    assert "This is itself rank 1 of 2" in done.stderr


class Bare:
    """A Python with all packages of this one but frameworks and Horovod."""

    def __init__(self, folder: Path) -> None:
        hidden = re.compile(r"(torch|tensorflow|keras|horovod|mpi4py)", re.IGNORECASE)
        packages = folder / "packages"
        packages.mkdir()
        for package in Path(sysconfig.get_path("purelib")).iterdir():
            if not hidden.match(package.name):
                (packages / package.name).symlink_to(package)
        self.env = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(packages)])}
        self.python = folder / "python"
        self.python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
        self.python.chmod(0o755)

    def doctor(self, argv: Sequence[str], cwd: Path) -> subprocess.CompletedProcess[str]:
        return call(["doctor", *argv, "--python", str(self.python)], cwd, self.env, "-S")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Bare:
    return Bare(tmp_path_factory.mktemp("bare"))


def test_with_neither_framework_nor_horovod_it_says_what_to_install(bare: Bare, tmp_path: Path) -> None:
    done = bare.doctor(["--json"], tmp_path)
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert report["status"] == "fail"
    failed = {finding["name"]: finding for finding in of_status(report, "fail")}
    assert set(failed) == {"frameworks", "allreduce"}
    assert "pip install 'hvdtrain[torch]'" in failed["frameworks"]["hint"]


def test_the_table_has_a_hint_and_a_last_word(bare: Bare, tmp_path: Path) -> None:
    done = bare.doctor(["-np", "1", "--framework", "torch"], tmp_path)
    assert done.returncode == 1, done.stderr
    assert "torch is not installed" in done.stdout
    assert "HINT (frameworks): install it: pip install 'hvdtrain[torch]'." in done.stdout
    assert done.stdout.splitlines()[-1].startswith("1 failed")


def test_missing_data_and_a_folder_that_cannot_be_written(bare: Bare, tmp_path: Path) -> None:
    """/proc/self is a folder in which nobody makes files, root neither."""
    flags = ["--data", str(tmp_path / "none"), "--output-dir", "/proc/self", "--no-measure", "--json"]
    done = bare.doctor(flags, tmp_path)
    assert done.returncode == 1, done.stderr
    failed = {finding["name"]: finding for finding in of_status(json.loads(done.stdout), "fail")}
    assert "none: No such file or directory" in failed["data"]["fact"]
    assert "cannot be written" in failed["output folder"]["fact"]
    assert all(finding["hint"] for finding in failed.values())
    assert list(tmp_path.iterdir()) == []


def test_one_examination_finds_a_file_for_a_folder_no_interface_and_one_machine_twice(
    bare: Bare, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    flags = ["--output-dir", str(tmp_path / "file"), "--no-measure", "--json"]
    alone = bare.doctor([*flags, "--nic", "nosuch0"], tmp_path)
    assert alone.returncode == 1, alone.stderr
    facts = {finding["name"]: finding["fact"] for finding in of_status(json.loads(alone.stdout), "fail")}
    assert facts["output folder"] == f"{tmp_path / 'file'} is not a folder"
    assert facts["network"] == "it has none of nosuch0"
    twice = bare.doctor([*flags, "-H", "localhost:2,127.0.0.1:2"], tmp_path)
    assert twice.returncode == 1, twice.stderr
    facts = {finding["name"]: finding["fact"] for finding in of_status(json.loads(twice.stdout), "fail")}
    assert facts["hosts"] == "localhost and 127.0.0.1 are one machine"


def test_an_interpreter_without_hvdtrain_is_named(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "/x/python: No module named hvdtrain" >&2\nexit 1\n')
    python.chmod(0o755)
    done = call(["doctor", "--json", "--python", str(python)], tmp_path)
    assert done.returncode == 1, done.stderr
    (failed,) = of_status(json.loads(done.stdout), "fail")
    assert (failed["name"], failed["host"]) == ("ssh", "localhost")
    assert "No module named hvdtrain" in failed["fact"]


def test_an_interpreter_that_is_not_there_is_a_finding(tmp_path: Path) -> None:
    done = call(["doctor", "--json", "--python", "/no/such/python"], tmp_path)
    assert done.returncode == 1, done.stderr
    (failed,) = of_status(json.loads(done.stdout), "fail")
    assert "/no/such/python cannot be started" in failed["fact"]
