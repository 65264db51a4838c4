"""Run the unit tests of what was changed: `make test-quick` does, after lint and types.

Changed is what differs from the merge base with the main branch, and what is not committed. A product file chooses the
tests of its room, a test file itself, a helper of tests the files that name it; where none of these was changed, a
small set runs. Says what was chosen and why. Arguments are passed on to pytest.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UNIT = Path("tests/unit")
SUPPORT = Path("tests/support")
SMOKE = [UNIT / "topology", UNIT / "config/test_train_config.py", UNIT / "algorithms/test_early_stopping.py"]
OTHER_ROOMS = {"Dockerfile": "docker", "pyproject.toml": "test_packaging.py", "setup.py": "test_packaging.py"}
SLOW = [
    *(UNIT / "adapters" / name for name in ("test_keras_optimizers.py", "test_torch_activation_checkpointing.py")),
    *(UNIT / "data_sharding" / name for name in ("adapters", "loading")),
    *(UNIT / name for name in ("tasks/test_both_frameworks.py", "weights/test_weights_across.py")),
]
"""What takes a quarter of a minute and more: `make unit` runs it, and this where it was chosen by itself."""


def changed_files() -> tuple[str, list[str]]:
    """What they were compared with, and their paths from the repository's root, deleted ones included."""
    bases = {name: _git("merge-base", "HEAD", name) for name in ("origin/HEAD", "origin/main", "main", "HEAD")}
    name, (base,) = next((name, commit) for name, commit in bases.items() if commit)
    return name, sorted({*_git("diff", "--name-only", base), *_git("ls-files", "--others", "--exclude-standard")})


def _git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def tests_of(path: Path) -> list[Path]:
    """The files and folders of tests that a changed file chooses."""
    if path.is_relative_to(UNIT):
        return _of_test_file(path)
    if path.is_relative_to(SUPPORT):
        return _tests_with(path.name if "scripts" in path.parts else ".".join(path.with_suffix("").parts[1:]))
    first, *rest = path.with_suffix("").parts
    if first == "hvdtrain":
        candidates = [UNIT / rest[0], UNIT / f"test_{rest[0]}.py"]
    elif first == "data_sharding":
        candidates = [UNIT / first / rest[0], UNIT / first / f"test_{rest[0]}.py", UNIT / first]
    else:
        candidates = [UNIT / OTHER_ROOMS.get(path.name, first)]
    named = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    return [each for each in candidates if (ROOT / each).exists()][:1] or _tests_with(named)


def _of_test_file(path: Path) -> list[Path]:
    if path.name.startswith("test_"):
        return [path] if (ROOT / path).exists() else []
    if path.name == "conftest.py" or path.suffix != ".py":  # what the tests of a room share or read
        return [] if path.parent == UNIT else [Path(*path.parts[:3])]
    return _tests_with(path.stem)


def _tests_with(text: str) -> list[Path]:
    every = sorted((ROOT / UNIT).rglob("test_*.py"))
    return [test.relative_to(ROOT) for test in every if text in test.read_text()]


def choose() -> list[Path]:
    """What to run; prints why."""
    base, changed = changed_files()
    chosen: dict[Path, list[str]] = {}
    for name in changed:
        for test in tests_of(Path(name)):
            chosen.setdefault(test, []).append(name)
    print(f"{len(changed)} files differ from the merge base with {base}.")
    for test, names in sorted(chosen.items()):
        print(f"  {test}  because of {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}")
    if not chosen:
        print(f"  None has unit tests of its own; a small set runs: {', '.join(map(str, SMOKE))}")
    return sorted(chosen) or SMOKE


def main(arguments: list[str]) -> int:
    """Pytest's exit code."""
    chosen = choose()
    left_out = [slow for slow in SLOW if slow not in chosen and any(slow.is_relative_to(each) for each in chosen)]
    for slow in left_out:
        print(f"  left out, since it takes long: {slow} (`make unit` runs it)")
    words = [*map(str, chosen), *(f"--ignore={slow}" for slow in left_out), *arguments]
    command = [sys.executable, "-m", "pytest", "-q", "--numprocesses", "auto", "--dist", "loadfile", *words]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
