"""The commands of README and of the pages of docs, as they stand: `<!-- tested: NAME -->` before a block says so.

What the test changes is said here: the default task trains as `FEWER` says where a command doesn't choose the task
or the epochs, every process computes in one thread, and `hvdtrain` is run as `python -m hvdtrain` in an interpreter
that has imported the framework, but for launchers, whose workers are such interpreters with `launch local`.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.processes import run_command
from support.runs import read_json
from support.warm.interpreters import Interpreter

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
INDEX = (ROOT / "examples" / "README.md").read_text()
# docs/sagemaker.md has a test of its own.
PAGES = "\n".join(
    [README, INDEX, *(p.read_text() for p in sorted((ROOT / "docs").rglob("*.md")) if p.stem != "sagemaker")]
)
BLOCKS = dict(re.findall(r"<!-- tested: ([\w ]+) -->\n```bash\n(.*?)```", PAGES, re.DOTALL))
# 30 steps each, which teach the digits, and are more than those after which one command stops.
FEWER = ["--epochs", "4", "--report", "never"]
FILES = re.findall(r"<!-- file: (\S+) = (\S+) -->\n```python\n(.*?)```", PAGES, re.DOTALL)
DIFFS = re.findall(r"<!-- diff to: (\S+) -->\n```diff\n(.*?)```", PAGES, re.DOTALL)


def test_every_horovodrun_block_is_tested() -> None:
    blocks = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    untested = [b for b in blocks if "horovodrun" in b and b not in BLOCKS.values()]
    assert untested == []


def test_shown_files_are_the_examples() -> None:
    assert FILES
    for _, path, shown in FILES:
        assert (ROOT / path).read_text() == shown


def test_shown_diffs_end_in_the_examples() -> None:
    assert DIFFS
    for path, diff in DIFFS:
        code = (ROOT / path).read_text().split('"""\n\n', 1)[1]
        before, after = ("".join(row[1:] or row for row in diff.splitlines(True) if row[0] != side) for side in "+-")
        assert after == code
        assert set(ast.unparse(ast.parse(before)).splitlines()) - set(code.splitlines())


@pytest.mark.parametrize("name", sorted(BLOCKS))
@pytest.mark.timeout(900)
def test_block_runs(name: str, tmp_path: Path) -> None:
    for example in (ROOT / "examples").glob("*.py"):
        shutil.copy(example, tmp_path)

    def run(argv: list[str]) -> None:
        kind: Interpreter = "warm workers" if argv[:2] == ["hvdtrain", "launch"] else "warm"
        finished = run_command(_as_tested(argv), 240, env=_as_user_would_set(), cwd=tmp_path, interpreter=kind)
        assert finished.returncode == 0, f"{shlex.join(argv)}\n{finished.tail()}"

    with ThreadPoolExecutor() as background:
        behind = []
        for line in BLOCKS[name].splitlines():
            *argv, last = shlex.split(line, comments=True)
            if last == "&":  # must end well by itself, once the other lines have run
                behind.append(background.submit(run, argv))
            else:
                run([*argv, last])
        for command in behind:
            command.result()
    results = [result for path in tmp_path.rglob("result.json") if "task" in (result := read_json(path))]
    assert results or name in ("keras", "plain horovod", "own loops")
    for result in results:
        assert name == "synthetic" or result["metrics"]["accuracy"] >= 0.9  # noise teaches nothing
        assert result["weights"]["equal_on_all_ranks"]


def _as_tested(argv: list[str]) -> list[str]:
    program, *flags = [*argv, *(FEWER if _trains_the_default_task(argv) else [])]
    if program == "hvdtrain":
        return ["python", "-m", "hvdtrain", *flags]
    return [program if program == "python" else str(Path(sys.executable).parent / program), *flags]


def _trains_the_default_task(argv: list[str]) -> bool:
    """For as many epochs as are its own."""
    if "hvdtrain" not in argv or {"--task", "--epochs", "--dry-run"} & set(argv):
        return False
    flags = argv[argv.index("hvdtrain") + 1 :]
    return not flags or flags[0] == "launch" or flags[0].startswith("--")


def _as_user_would_set() -> dict[str, str]:
    """mpirun refuses root unless told otherwise; containers and CI often run as root."""
    allow = (
        "OMPI_ALLOW_RUN_AS_ROOT",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
        "PRTE_ALLOW_RUN_AS_ROOT",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM",
    )
    alone = {"OMP_NUM_THREADS": "1"}  # other tests run beside these, and threads would wait for each other
    return {**alone, **(dict.fromkeys(allow, "1") if os.geteuid() == 0 else {})}
