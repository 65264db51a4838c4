"""What launchers make of odd values, closed files, and of workers that fail with much to say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hvdtrain.cli.main import main
from hvdtrain.errors import UsageError
from hvdtrain.launch.job_spec import JobSpec
from hvdtrain.launch.kubernetes import _Dumper
from hvdtrain.launch.processes.worker_group import ERR
from hvdtrain.launch.slurm import _quoted
from hvdtrain.launch.supervisor.console import Console

LAUNCH = [sys.executable, "-m", "hvdtrain", "launch", "local"]


def test_texts_that_other_readers_of_yaml_take_for_something_else_are_quoted() -> None:
    texts = ["1e-3", "1.5e3", "12e45", "+.5e1", "0o17", "08", "y", "N", "off", "Null", "~", "1Gi", ".5", "-7"]
    assert yaml.dump(texts, Dumper=_Dumper) == "".join(f'- "{text}"\n' for text in texts)
    assert yaml.dump(["train", "--lr", "a b"], Dumper=_Dumper, width=99) == "- train\n- --lr\n- a b\n"


def test_a_folder_is_quoted_for_sbatch() -> None:
    assert _quoted("/tmp/a-b_c.1") == "/tmp/a-b_c.1"
    assert _quoted("/tmp/o'brien") == '"/tmp/o\'brien"'
    for path in ("/tmp/a\tb", "/tmp/a\rb", '/tmp/a"b'):
        with pytest.raises(UsageError, match="sbatch cannot read"):
            _quoted(path)


@pytest.mark.parametrize("field", ["max_restarts", "time_limit", "grace"])
def test_a_number_of_any_length_is_refused(field: str) -> None:
    with pytest.raises(UsageError, match="It must be 2147483647 or less"):
        JobSpec(command=("train",), np=1, **{field: int("9" * 400)})  # type: ignore[arg-type]


def test_a_line_that_comes_more_often_than_it_is_quoted_stays() -> None:
    console = Console()
    for _ in range(50):
        console.take(1, ERR, b"again\n")
    console.drop_quoted_errors(1, ["[1] again"] * 20, 300)
    assert console.held_lines(1) == ["[1] again"] * 30


def test_what_is_held_of_a_rank_can_be_compared_with_the_report() -> None:
    console = Console()
    for line in (b"one\n", b"two\n"):
        console.take(1, 1, line)
    assert console.held_lines(1) == ["[1] one", "[1] two"]
    assert console.held_lines(2) == []


def test_no_line_of_a_failed_rank_is_lost(tmp_path: Path) -> None:
    script = "import os, sys\nif os.environ['HOROVOD_RANK'] == '1':\n    for i in range(100): print('result', i)\n"
    for number, end in enumerate(("raise ValueError('x')", "sys.exit(5)", "sys.exit(2)")):
        (tmp_path / f"{number}.py").write_text(f"{script}    sys.stdout.flush()\n    {end}\n")
        command = [*LAUNCH, "-np", "2", "--", str(tmp_path / f"{number}.py")]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert ended.stdout.splitlines() == [f"[1] result {i}" for i in range(100)], (end, ended)
        assert ended.stderr.count("ValueError: x") == (number == 0), ended.stderr  # in the report only
    command = [*LAUNCH, "-np", "1", "--", "python", "-c", "exit(2)"]
    silent = subprocess.run(command, capture_output=True, timeout=120, check=False)
    assert (silent.returncode, silent.stderr.count(b"exit code 2")) == (2, 1)


@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_launcher_whose_files_are_closed_ends(closed: str) -> None:
    """A pipe of its own would have their numbers."""
    program = "import sys; sys.stdout.write('out' * 9999); sys.stderr.buffer.write(bytes([15, 10]))"
    command = f'"$0" -m hvdtrain launch local -np 1 -- python -c "$1" {closed}'
    ended = subprocess.run(["bash", "-c", command, sys.executable, program], timeout=120, check=False)
    assert ended.returncode == 0


def test_a_batch_script_has_no_bytes_that_are_not_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "slurm", "-np", "1", "--dry-run", "--", "script.py", os.fsdecode(b"\xff")]) == 2
    assert "not UTF-8" in capsys.readouterr().err
