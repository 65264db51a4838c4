"""Code on pages: Python, YAML and JSON parse, and commands of hvdtrain have options that exist."""

from __future__ import annotations

import ast
import json
import re
import shlex
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml
from commands import unknown_words

_BLOCK = re.compile(r"^( *)```(\w+)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`((?:[\w-]+ [^`\n]*)?\bhvdtrain -?\w[^`\n]*)`")
"""A command in a sentence."""
_ENDS = ("|", "&&", ";", "&", ">", "2>", ">>", "||")


def faults_of_blocks(root: Path) -> list[str]:
    """What is wrong in the blocks of README and all pages, one sentence each."""
    pages = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]
    return [
        f"{page.relative_to(root).as_posix()}:{line}: {fault}"
        for page in pages
        for line, fault in faults_of_text(page.read_text(encoding="utf-8"))
    ]


def faults_of_text(text: str) -> Iterator[tuple[int, str]]:
    """Line and fault of each block of a page that is not right."""
    for block in _BLOCK.finditer(text):
        check = _CHECKS.get(block[2])
        line = text.count("\n", 0, block.start()) + 1
        for fault in check(textwrap.dedent(block[3])) if check else ():
            yield line, fault
    blank = _BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)
    for command in _INLINE.finditer(blank):
        line = blank.count("\n", 0, command.start()) + 1
        yield from ((line, fault) for fault in _commands(command[1].replace("…", "...")))


def _python(code: str) -> Iterator[str]:
    try:
        ast.parse(code)
    except SyntaxError as error:
        yield f"this Python does not parse: {error.msg}, line {error.lineno} of the block."


def _yaml(code: str) -> Iterator[str]:
    try:
        list(yaml.safe_load_all(code))
    except yaml.YAMLError as error:
        yield f"this YAML does not parse: {' '.join(str(error).split())}."


def _json(code: str) -> Iterator[str]:
    try:
        json.loads(code)
    except ValueError as error:
        yield f"this JSON does not parse: {error}."


def _commands(code: str) -> Iterator[str]:
    for line in code.replace("\\\n", " ").splitlines():
        try:
            words = shlex.split(line.removeprefix("$ "), comments=True)
        except ValueError as error:
            yield f"the line {line!r} cannot be read: {error}."
            continue
        for call in _calls_of(words):
            yield from (f"`hvdtrain {' '.join(call[:2])}` knows no {word}." for word in unknown_words(call))


def _calls_of(words: list[str]) -> Iterator[list[str]]:
    """What follows each `hvdtrain` of a line, up to the end of its command."""
    for at, word in enumerate(words):
        rest = words[at + 1 :]
        is_image = words[0] in ("docker", "podman") and rest[:1] == ["hvdtrain"]
        if word == "hvdtrain" and words[at - 1 : at] not in (["-t"], ["install"], ["cd"]) and not is_image:
            ends = [place for place, each in enumerate(rest) if each in _ENDS]
            yield rest[: ends[0]] if ends else rest


_CHECKS: dict[str, Callable[[str], Iterator[str]]] = {
    **dict.fromkeys(["python", "py"], _python),
    **dict.fromkeys(["yaml", "yml"], _yaml),
    "json": _json,
    **dict.fromkeys(["bash", "console", "sh"], _commands),
}
