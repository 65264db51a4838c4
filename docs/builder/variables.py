"""Environment variables of hvdtrain that the code names, each with what the code says of it."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

_FOLDERS = ("hvdtrain", "data_sharding", "docker")
_NAME = re.compile(r"HVDTRAIN_[A-Z]+(?:_[A-Z]+)*\b(?!\*)")


@dataclass(frozen=True)
class Variable:
    """A variable, a sentence of the code about it ("" where there is none), and the files that name it."""

    name: str
    about: str
    files: tuple[str, ...]


def variables(root: Path) -> list[Variable]:
    """All of them, by name."""
    files: dict[str, list[str]] = {}
    about: dict[str, list[str]] = {}
    for folder in _FOLDERS:
        for file in sorted((root / folder).rglob("*.py")):
            text = file.read_text(encoding="utf-8")
            for name in sorted(set(_NAME.findall(text))):
                files.setdefault(name, []).append(file.relative_to(root).as_posix())
                about.setdefault(name, []).extend(_sentences(text, name))
    return [Variable(name, (about[name] or [""])[0], tuple(files[name])) for name in sorted(files)]


def _sentences(text: str, name: str) -> list[str]:
    """What a module says of a variable: below the constant that is its name, else where a docstring has the name."""
    tree = ast.parse(text)
    below, inside = [], []
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for first, second in zip(body, body[1:], strict=False) if isinstance(body, list) else ():
            is_text = isinstance(second, ast.Expr) and isinstance(second.value, ast.Constant)
            value = getattr(first, "value", None)
            if is_text and isinstance(value, ast.Constant) and value.value == name:
                below.append(" ".join(str(second.value.value).split()))
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)):
            said = " ".join((ast.get_docstring(node) or "").split())
            inside += [sentence for sentence in re.split(r"(?<=\.) (?=[A-Z`])", said) if name in sentence]
    return below + inside
