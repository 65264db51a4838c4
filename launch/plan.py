"""The pure result of rendering a job for one launcher, and the text that shows it."""

from __future__ import annotations

import fnmatch
import shlex
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field

END = "END-OF-FILE"
"""What closes a file's text in the script; the renderers put no such line into a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """What one launcher would run, exactly; nothing in it was run or looked up.

    Args:
        launcher: for people, such as "mpirun (Open MPI 5)".
        argv: the command, the program first.
        env: variables to set for it; no values of the user's own variables.
        files: name → text, written before the command starts.
        keep: patterns of the names of variables that the command inherits; None: all.
        working_dir: where it starts; None: where the caller is.
        notes: (what, why) of each choice that a reader may wonder about.
    """

    launcher: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    keep: tuple[str, ...] | None = None
    working_dir: str | None = None
    notes: tuple[tuple[str, str], ...] = ()

    def describe(self) -> str:
        """The whole plan as a bash script that does what `hvdtrain.launch.execute` does."""
        parts = ["#!/usr/bin/env bash", comment(self.launcher, self.notes), "set -eu"]
        if self.keep is not None:
            parts.append(_keep_only(self.keep))
        parts.extend(f"export {name}={shlex.quote(value)}" for name, value in sorted(self.env.items()))
        parts.extend(_here_document(name, text) for name, text in self.files.items())
        if self.working_dir is not None:
            parts.append(f"cd {shlex.quote(self.working_dir)}")
        return "\n".join([*parts, "", "exec " + wrap_command(self.argv)]) + "\n"

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The variables that the command gets, where the caller's are `inherited`."""
        patterns = self.keep
        kept = {
            name: value
            for name, value in inherited.items()
            if patterns is None or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        }
        return {**kept, **self.env}


def comment(title: str, notes: tuple[tuple[str, str], ...]) -> str:
    """Title and notes as lines that begin with #."""
    lines = [f"# {title}", "#"]
    for what, why in notes:
        lines.extend(
            textwrap.wrap(
                f"{what}: {why}",
                110,
                initial_indent="# ",
                subsequent_indent="#   ",
                break_long_words=False,
                break_on_hyphens=False,
            )
        )
    return "\n".join(lines)


def wrap_command(argv: tuple[str, ...], indent: str = "    ") -> str:
    """The command quoted for a shell, each flag on a line of its own, and so the interpreter of hvdtrain."""
    interpreter = next((i for i in range(1, len(argv)) if argv[i + 1 : i + 3] == ("-m", "hvdtrain")), 0)
    text = shlex.quote(argv[0])
    for i, word in enumerate(argv[1:], start=1):
        is_flag = word.startswith("-") and " " not in word and not (interpreter and i == interpreter + 1)
        text += (f" \\\n{indent}" if is_flag or i == interpreter else " ") + shlex.quote(word)
    return text


def _keep_only(patterns: tuple[str, ...]) -> str:
    return (
        "for name in $(compgen -e); do\n"
        f"    case $name in\n        {'|'.join(patterns)}) ;;\n"
        '        *) unset "$name" ;;\n    esac\ndone'
    )


def _here_document(name: str, text: str) -> str:
    return f"cat > {shlex.quote(name)} <<'{END}'\n{text}{END}"
