"""The Dockerfile as instructions and stages."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[4]


@dataclass
class Stage:
    """From one FROM to the next: its base, its name and its instructions in order."""

    base: str
    name: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def values(self, keyword: str) -> list[str]:
        """What follows each instruction of that name."""
        return [value for word, value in self.instructions if word == keyword]


def instructions(text: str) -> list[tuple[str, str]]:
    """(keyword, the rest in one line) of every instruction; comments, also between continued lines, are left out."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    pairs = (line.partition(" ") for line in joined.splitlines())
    return [(word.upper(), rest.strip()) for word, _, rest in pairs]


def stages(text: str) -> tuple[dict[str, str], list[Stage]]:
    """The arguments before the first FROM with their defaults, and all stages."""
    arguments: dict[str, str] = {}
    found: list[Stage] = []
    for word, value in instructions(text):
        if word == "FROM":
            base, _, name = value.split()
            found.append(Stage(base, name))
        elif found:
            found[-1].instructions.append((word, value))
        else:
            name, _, default = value.partition("=")
            arguments[name] = default
    return arguments, found


def copies(stage: Stage) -> list[tuple[str | None, list[str], str]]:
    """(stage copied from or None, sources, destination) of every COPY."""
    found = []
    for value in stage.values("COPY"):
        words = shlex.split(value)
        flags = [word for word in words if word.startswith("--")]
        paths = [word for word in words if not word.startswith("--")]
        origin = next((flag.partition("=")[2] for flag in flags if flag.startswith("--from=")), None)
        found.append((origin, paths[:-1], paths[-1]))
    return found


def environment(stage: Stage) -> dict[str, str]:
    """What the stage's ENV instructions set, unexpanded."""
    return dict(word.split("=", 1) for value in stage.values("ENV") for word in shlex.split(value))
