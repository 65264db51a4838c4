"""What `make setup` adds to an environment: any script imports torchvision, and learns that nothing connects it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hvdtrain.horovod_wheel.environment import write_start_up

ROOT = Path(__file__).parents[3]
STEP = {
    **{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1"},
    **{"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"},
}
WARNING = "hvdtrain: Slurm has started 2 processes (SLURM_STEP_NUM_TASKS=2), and nothing connects them for Horovod. "


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages that Python takes as it takes site-packages, with the two files."""
    folder = tmp_path_factory.mktemp("packages")
    write_start_up(folder)
    return folder


def run(packages: Path | None, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`script` in an interpreter that has read the .pth files of `packages`, and none of the same name before."""
    forget = "import sys; sys.meta_path[:] = [f for f in sys.meta_path if f.__module__ != 'hvdtrain_start_up']\n"
    forget += "sys.modules.pop('hvdtrain_start_up', None)\n"
    start = f"import site; site.addsitedir({str(packages)!r})\n" if packages is not None else ""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, "-c", forget + start + script]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)


def test_a_start_of_python_imports_one_small_module(packages: Path) -> None:
    """Written for the Python that is to read it, and compiled."""
    script = f"before = set(sys.modules); site.addsitedir({str(packages)!r}); print(set(sys.modules) - before)"
    done = run(None, f"import site; {script}")
    assert done.stdout == "{'hvdtrain_start_up'}\n", done.stderr
    assert len(list(packages.glob("__pycache__/hvdtrain_start_up.*.pyc"))) == 1
    assert sorted(path.name for path in packages.iterdir() if path.is_file()) == [
        "hvdtrain_start_up.pth",
        "hvdtrain_start_up.py",
    ]


def test_a_script_imports_torchvision(packages: Path) -> None:
    script = (
        "import torchvision; from torchvision import datasets, transforms\n"
        "print(torchvision.models.resnet18(num_classes=3).fc.out_features)\n"
    )
    assert run(packages, script).stdout == "3\n"


def test_who_only_looks_for_torchvision_imports_no_torch(packages: Path) -> None:
    script = "import importlib.util; print(importlib.util.find_spec('torchvision') is None, 'torch' in sys.modules)"
    assert run(packages, script).stdout == "False False\n"


def test_plain_horovod_in_a_slurm_step_tells_that_nothing_connects_it_once(packages: Path) -> None:
    script = "import horovod.torch as hvd, horovod.torch.mpi_ops; hvd.init(); print(hvd.size())"
    done = run(packages, script, **STEP)
    assert done.stdout == "1\n", done.stderr
    assert done.stderr.count(WARNING) == 1, done.stderr
    assert "HINT: write `import hvdtrain.torch as hvd` (or hvdtrain.tensorflow), which connects them" in done.stderr


@pytest.mark.parametrize(
    ("variables", "script"),
    [
        ({**STEP, "SLURM_PROCID": "1", "SLURM_LOCALID": "1"}, ""),  # one process tells it
        ({**STEP, "SLURM_STEP_NUM_TASKS": "1"}, ""),
        ({**STEP, "HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"}, ""),
        ({**STEP, "PMI_RANK": "0", "PMI_SIZE": "2"}, ""),  # MPI connects them
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, ""),  # a batch script
        ({"RANK": "0"}, ""),  # somebody's own variable
        (STEP, "import hvdtrain.comm.open\n"),  # which connects them
        ({}, ""),
    ],
)
def test_it_says_nothing_where_processes_are_connected_or_there_is_one(
    packages: Path, variables: dict[str, str], script: str
) -> None:
    """Finding the module is enough; it need not be loaded, which takes seconds."""
    done = run(packages, script + "[f.find_spec('horovod.torch', None) for f in sys.meta_path[:1]]", **variables)
    assert (done.returncode, done.stderr) == (0, "")


def test_torchrun_connects_no_plain_horovod_either(packages: Path) -> None:
    done = run(packages, "sys.meta_path[0].find_spec('horovod.tensorflow')", RANK="0", WORLD_SIZE="3")
    assert "torchrun, or whatever sets RANK and WORLD_SIZE, has started 3 processes (WORLD_SIZE=3)" in done.stderr


def test_the_command_writes_into_its_own_environment_and_changes_nothing_without_hvdtrain(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True, timeout=60)
    command = [tmp_path / "bin" / "python"]
    write = [*command, "-m", "hvdtrain.horovod_wheel", "start-up"]
    subprocess.run(write, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, timeout=60)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for name in ("torchvision", "horovod"):
        script = f"import sys; print('hvdtrain_start_up' in sys.modules, flush=True); import {name}"
        done = subprocess.run(
            [*command, "-c", script],
            env={**environment, **STEP},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout) == (1, "True\n"), done.stderr
        assert done.stderr.endswith(f"ModuleNotFoundError: No module named '{name}'\n"), done.stderr
        assert "hvdtrain" not in done.stderr
