"""Names of hosts cannot become commands: they are checked wherever they come from, and no shell reads a command."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from trap import Trap

from hvdtrain.cli.main import main

ROOT = Path(__file__).parents[3]


def as_shell_command(trap: Trap) -> str:
    return f"a;{trap.command}"


def as_ssh_option(trap: Trap) -> str:
    return f"-oProxyCommand={trap.command}"


def log_in_by_a_shell(host: str) -> None:
    """As a launcher does that joins its words to a line."""
    subprocess.run(f"true {host}", shell=True, check=False, timeout=60)


def log_in_by_ssh(host: str) -> None:
    """As a launcher does that puts the name where options may be."""
    subprocess.run(["ssh", "-o", "BatchMode=yes", host, "true"], capture_output=True, check=False, timeout=60)


NAMES: dict[str, tuple[Callable[[Trap], str], Callable[[str], None]]] = {
    "a;touch": (as_shell_command, log_in_by_a_shell),
    "-oProxyCommand": (as_ssh_option, log_in_by_ssh),
}

Call = tuple[list[str], dict[str, str]]
"""What `hvdtrain` is called with, and variables."""


def by_option(name: str, launcher: str) -> Call:
    return ["launch", launcher, f"--hosts={name}:1,b:1", "--", "train"], {}


def by_hostfile(name: str, launcher: str) -> Call:
    Path("hosts").write_text(f"b slots=1\n{name}:1\n")
    return ["launch", launcher, "--hostfile", "hosts", "--", "train"], {}


def by_rank_table(name: str, launcher: str) -> Call:
    server = {"server_id": name, "device": [{"device_id": "0", "rank_id": "0"}]}
    Path("table").write_text(json.dumps({"version": "1.0", "server_count": "1", "server_list": [server]}))
    return ["launch", launcher, "--rank-table", "table", "--", "train"], {}


def by_sagemaker(name: str, launcher: str) -> Call:
    return ["launch", launcher, "--", "train"], {"SM_HOSTS": json.dumps([name, "b"]), "SM_NUM_GPUS": "0"}


def by_script(name: str, launcher: str) -> Call:
    script = Path("discover")
    script.write_text(f"#!/bin/sh\ncat <<'END'\n{name}:1\nEND\n")
    script.chmod(0o755)
    elastic = ["-np", "1", "--min-workers", "1", "--max-restarts", "1"]
    return ["launch", launcher, *elastic, "--host-discovery-script", "./discover", "--", "train"], {}


SOURCES = [
    *((by_option, launcher) for launcher in ("ssh", "horovodrun", "mpirun")),
    *((by_hostfile, launcher) for launcher in ("ssh", "mpirun")),
    (by_rank_table, "ssh"),
    (by_sagemaker, "ssh"),
    (by_script, "local"),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("source", "launcher"), SOURCES, ids=lambda each: getattr(each, "__name__", each))
def test_a_name_that_a_shell_or_ssh_would_run_is_refused(
    name: str,
    source: Callable[[str, str], Call],
    launcher: str,
    trap: Trap,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made, unguarded = NAMES[name]
    host = made(trap)
    trap.require_sprung_by(lambda: unguarded(host))
    monkeypatch.chdir(tmp_path)
    words, variables = source(host, launcher)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert main(words) == 2
    assert re.search(r"is not (a host name|understood)\.", capsys.readouterr().err)
    trap.require_unsprung()


def test_the_hosts_of_doctor_are_checked_too(trap: Trap, capsys: pytest.CaptureFixture[str]) -> None:
    trap.require_sprung_by(lambda: log_in_by_ssh(as_ssh_option(trap)))
    assert main(["doctor", f"--hosts={as_ssh_option(trap)}:1"]) == 2
    assert "is not a host name." in capsys.readouterr().err
    trap.require_unsprung()


def shell_calls(path: Path) -> Iterator[str]:
    """Calls that hand text to a shell of this machine."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        shell = next((word.value for word in node.keywords if word.arg == "shell"), None)
        if called in ("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput") or (
            shell is not None and ast.unparse(shell) != "False"
        ):
            yield f"{path}: {ast.unparse(node)}"


def test_no_command_is_given_to_a_shell_as_text(tmp_path: Path) -> None:
    (tmp_path / "careless.py").write_text("import os, subprocess\nos.system(x)\nsubprocess.run(x, shell=True)\n")
    assert len(list(shell_calls(tmp_path / "careless.py"))) == 2
    folders = [ROOT / name for name in ("hvdtrain", "data_sharding", "docker")]
    files = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    assert len(files) > 200
    assert [call for path in files for call in shell_calls(path)] == []
