"""Which extras a virtual environment was set up with: remembered there, so that the next set-up keeps to them."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from hvdtrain.errors import UsageError, did_you_mean

DEFAULT_EXTRAS = "torch,torchvision,tensorflow,mpi,dev"
_FILE = "hvdtrain-extras"


def chosen_extras(root: Path, venv: Path, asked: str | None, added: str) -> str:
    """The extras to install: `asked` (where that is None, what `venv` remembers, at first the default) and `added`.

    Says so in a line where `added` brings new ones.

    Raises:
        UsageError: pyproject.toml in `root` has no such extra.
    """
    chosen = _names(asked if asked is not None else read_line(venv / _FILE) or DEFAULT_EXTRAS)
    known = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for name in chosen:
        if name not in known:
            hint = did_you_mean(name, known)
            raise UsageError(f"There is no extra {name!r}.", "Nothing was installed.", hint)
    missing = [name for name in _names(added) if name not in chosen]
    if missing:
        print(f"setup: {','.join(missing)} is added to {','.join(chosen)}: checks and tests need it", flush=True)
    return ",".join(chosen + missing)


def remember_extras(venv: Path, extras: str) -> None:
    """Has `chosen_extras` find them in `venv`."""
    write_line(venv / _FILE, extras)


def read_line(file: Path) -> str:
    """The text of a small file; "" where there is none."""
    return file.read_text(encoding="utf-8").strip() if file.is_file() else ""


def write_line(file: Path, text: str) -> None:
    """Replaces the file at once, so that nobody reads half of it."""
    temporary = file.with_suffix(".new")
    temporary.write_text(text + "\n", encoding="utf-8")
    os.replace(temporary, file)


def _names(extras: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in extras.split(",") if name.strip()))
