"""Scripts for shells: they know all commands and options, the shells take them, and nothing heavy is imported."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from support.commands import run, run_python

from hvdtrain.cli.command_parser import CommandParser, parser_of
from hvdtrain.cli.completion import SHELLS, script
from hvdtrain.cli.main import COMMANDS
from hvdtrain.config.option_help import keys, option_of

pytest.importorskip("shtab")

HEAVY = ("torch", "tensorflow", "keras", "horovod", "sklearn")
SCRIPT = str(Path(__file__).parents[2] / "support" / "scripts" / "imports_of.py")


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "hvdtrain.bash"
    path.write_text(script("bash"))
    return path


def completed(script: Path, line: str, folder: Path) -> set[str]:
    """What bash offers at the end of a command line."""
    words = line.split(" ")
    program = (
        f'source "{script}"; COMP_WORDS=({" ".join(repr(word) for word in words)}); COMP_CWORD={len(words) - 1}; '
        "COMPREPLY=(); complete_function=$(complete -p hvdtrain | sed 's/.*-F \\([^ ]*\\).*/\\1/'); "
        f'$complete_function hvdtrain "{words[-1]}" "{words[-2]}" 2>/dev/null; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, cwd=folder, timeout=60, check=False)
    return {word.strip() for word in done.stdout.split()}


def test_commands_options_and_values(bash: Path, tmp_path: Path) -> None:
    (tmp_path / "a-run").mkdir()
    (tmp_path / "a-file").write_text("")
    assert set(COMMANDS) <= completed(bash, "hvdtrain ", tmp_path)
    assert {option_of(key) for key in keys() if key != "task_args"} <= completed(bash, "hvdtrain train --", tmp_path)
    assert {"--epochs", "--ema-decay"} <= completed(bash, "hvdtrain --e", tmp_path)
    assert completed(bash, "hvdtrain train --precision ", tmp_path) == {"fp32", "tf32", "bf16", "fp16"}
    assert completed(bash, "hvdtrain checkpoint v", tmp_path) == {"verify"}
    assert {"local", "slurm"} <= completed(bash, "hvdtrain launch ", tmp_path)
    assert "--max-restarts" in completed(bash, "hvdtrain launch local --", tmp_path)
    assert {"--follow", "--rank"} <= completed(bash, "hvdtrain logs --", tmp_path)
    assert completed(bash, "hvdtrain top a-", tmp_path) == {"a-run"}


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_takes_its_script(shell: str, tmp_path: Path) -> None:
    text = script(shell)
    assert all(name in text for name in COMMANDS)
    assert "early" in text
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(text)
    subprocess.run([program, "-n", str(tmp_path / "script")], check=True, timeout=60)


def test_no_framework_is_imported(tmp_path: Path) -> None:
    done = run_python([SCRIPT, "--without", *HEAVY, "--", "completion", "bash"], tmp_path)
    assert done.code == 0, done
    assert "hvdtrain" in done.stdout


def test_without_the_library_it_is_refused(tmp_path: Path) -> None:
    done = run_python([SCRIPT, "--without", "shtab", "--", "completion", "bash"], tmp_path)
    done.require_refusal("The package shtab is not installed.", "pip install 'hvdtrain[completion]'")


def test_another_shell_is_refused(tmp_path: Path) -> None:
    run(["completion", "tcsh"], tmp_path).require_refusal("invalid choice: 'tcsh'", "bash", "fish")


def test_the_parser_of_a_command_is_got_without_running_it() -> None:
    begun = []

    def command(argv: object) -> int:
        options = CommandParser("hvdtrain x", "Nothing.").parse(["--debug"])
        begun.append((argv, options))
        return 0

    parser = parser_of(command)
    assert parser is not None
    assert (parser.prog, begun) == ("hvdtrain x", [])
    assert command([]) == 0  # it runs as ever afterwards
    assert len(begun) == 1
